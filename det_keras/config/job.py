"""The config of a generic job: a command on slots, without trials."""

# ruff: noqa: RUF009 - `setting` and `optional` return dataclass fields
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from det_keras.config.fields.entrypoint import Entrypoint, EntrypointKind, as_command, command
from det_keras.config.fields.environment import Environment
from det_keras.config.fields.names import generated_name
from det_keras.config.fields.resources import BindMount, JobResources
from det_keras.config.kinds import MOST_SECONDS, Boolean, Integer, ListOf, Place, PlainMapping, Text
from det_keras.config.legacy import fold_job
from det_keras.config.secrets import masked
from det_keras.config.section import Section, SectionKind, optional, setting


@dataclass(frozen=True)
class JobConfig(Section):
    """Everything about a generic job; every field has a value, given or by default.

    Attributes:
        name: shown in lists.
        description: a sentence about the job.
        data: values for the script, which reads them as `context.config_data`; values under ``data.secrets`` are hidden
            in every view.
        model: a model of the registry, such as ``digits@champion``, ``digits:3`` or ``digits`` for the newest version;
            `context.load_checkpoint_model()` returns it. The version is chosen when the job is submitted.
        workspace: a field of the original.
        project: a field of the original.
        entrypoint: the command: text for the shell, or a list of arguments; also given as `entrypoint_script`.
            Required.
        resources: slots and priority.
        environment: the variables of the script.
        bind_mounts: directories that a container would see. Accepted with a notice; tasks run in this machine's own
            file system.
        preemption_timeout: seconds that a stopped job may take to end before it is killed; None for
            3600.
        debug: a field of the original.
    """

    name: str = setting(Text(empty=False), factory=lambda: generated_name("Command"))
    description: str | None = optional(Text())
    data: dict[str, Any] = setting(PlainMapping(), factory=dict)
    model: str | None = optional(Text(empty=False))
    workspace: str = setting(Text(), "")
    project: str = setting(Text(), "", inert=True)
    entrypoint: Entrypoint | None = optional(EntrypointKind())
    resources: JobResources = setting(SectionKind(JobResources), factory=JobResources)
    environment: Environment = setting(SectionKind(Environment), factory=Environment)
    bind_mounts: tuple[BindMount, ...] = setting(ListOf(SectionKind(BindMount)), ())
    preemption_timeout: int | None = optional(Integer(minimum=0, maximum=MOST_SECONDS))
    debug: bool = setting(Boolean(), False, inert=True)

    @classmethod
    def from_dict(cls, full: Mapping[str, Any]) -> JobConfig:
        """Return the config that `to_dict` returned; unknown keys are ignored, missing fields get their defaults."""
        return cls.parse(fold_job(full).config, Place(strict=False))

    def hidden(self) -> dict[str, Any]:
        """Return `to_dict()` with all secrets masked."""
        return masked(self.to_dict())

    def command(self) -> list[str]:
        """Return the arguments to execute. A job has no trial class: text is run by the shell.

        Raises:
            ValueError: there is no entrypoint.
        """
        return command(as_command(self.entrypoint))
