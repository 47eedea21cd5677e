"""The config of an experiment, complete and in the current form."""

# ruff: noqa: RUF009 - `setting` and `optional` return dataclass fields
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from det_keras.config.fields.checkpoint_storage import CheckpointStorage
from det_keras.config.fields.entrypoint import Entrypoint, EntrypointKind, command, trial_class
from det_keras.config.fields.environment import Environment
from det_keras.config.fields.log_policies import BUILTIN_LOG_POLICIES, LogPoliciesKind, LogPolicy
from det_keras.config.fields.names import generated_name
from det_keras.config.fields.resources import BindMount, Resources
from det_keras.config.fields.small_sections import (
    Integrations,
    Optimizations,
    Pbs,
    Profiling,
    Reproducibility,
    RetentionPolicy,
    Security,
    Slurm,
)
from det_keras.config.kinds import (
    MOST_SECONDS,
    Anything,
    Boolean,
    Choice,
    Integer,
    Kind,
    LengthKind,
    ListOf,
    Place,
    PlainMapping,
    SpaceKind,
    Text,
    shown,
)
from det_keras.config.legacy import fold_experiment, settle_name
from det_keras.config.portable import given_part, move_extensions
from det_keras.config.searching.lengths import Length
from det_keras.config.searching.methods import settle_searcher
from det_keras.config.searching.searcher import Searcher
from det_keras.config.searching.space import Space
from det_keras.config.secrets import masked
from det_keras.config.section import Section, SectionKind, optional, setting
from det_keras.errors import ConfigProblem

#: The lowest layer; it contains the defaults of fields that merge item by item.
BUILTIN_LAYER: Mapping[str, Any] = {"log_policies": [dict(policy) for policy in BUILTIN_LOG_POLICIES]}


class _LabelKind(Kind[str]):
    """Text that is not blank."""

    def parse(self, raw: Any, place: Place) -> str:
        label = Text().parse(raw, place)
        if not label.strip():
            raise place.error(f"a label must not be blank, received {shown(label)}.")
        return label


class _LabelsKind(Kind[tuple[str, ...]]):
    """A set of labels."""

    def parse(self, raw: Any, place: Place) -> tuple[str, ...]:
        return tuple(sorted(set(ListOf(_LabelKind()).parse(raw, place))))

    def dump(self, value: tuple[str, ...]) -> list[str]:
        return list(value)


class _NothingKind(Kind[None]):
    def parse(self, raw: Any, place: Place) -> None:
        raise place.error(f"is internal; remove it, received {shown(raw)}.")


def _never() -> Length:
    return Length.batches(0)


def _builtin_policies() -> tuple[LogPolicy, ...]:
    return LogPoliciesKind().parse(BUILTIN_LAYER["log_policies"], Place())


@dataclass(frozen=True)
class ExperimentConfig(Section):
    """The complete config of an experiment; every field has a value, given or by default.

    Attributes:
        name: shown in lists and on pages.
        description: a sentence about the experiment.
        labels: words to find the experiment by; stored sorted, each once.
        data: values for the script, which reads them as `context.config_data`; values under ``data.secrets`` are hidden
            in every view.
        workspace: name of the workspace with the project of the experiment. Requires `project`.
        project: name of the project in which the experiment is put. Requires `workspace`.
        entrypoint: the command of a trial: text for the shell, a list of arguments, or a trial class as
            ``module:Class``. Required when the config is submitted. Given as `entrypoint_script`, it is never read as a
            trial class.
        hyperparameters: constants, and the space that the searcher samples.
        searcher: the search method and its metric.
        resources: slots and priority.
        max_restarts: number of times that a failed trial is restarted from its newest checkpoint.
        reproducibility: the seed, and deterministic kernels.
        records_per_epoch: number of records that count as an epoch in lengths; 0 for one pass over the data.
        scheduling_unit: batches between two reports of training metrics, and the longest workload, in batches. If the
            field is not given, training metrics are reported once per epoch.
        min_validation_period: longest training without a validation; 0 validates at the ends of epochs only.
        min_checkpoint_period: longest training without a checkpoint; 0 for no limit.
        perform_initial_validation: validate before the first batch.
        checkpoint_policy: save after the ``best`` validations, after ``all``, or after ``none``. If none of the fields
            about checkpoints is given, a checkpoint is saved at the end of each epoch.
        checkpoint_storage: where checkpoints are stored, and which are kept at the end.
        optimizations: the exchange of gradients and the precision of a step.
        environment: the variables of the script.
        bind_mounts: directories that a container would see. Accepted with a notice; tasks run in this machine's own
            file system.
        profiling: reports of the machine's load.
        log_policies: patterns to search for in a trial's log, and what a match leads to.
        retention_policy: how long the logs of trials are kept; None as the master says.
        preemption_timeout: seconds that a paused trial may take to save before it is killed; None for
            3600.
        debug: log at level DEBUG in the trial.
        integrations: other systems that take part, such as webhooks.
        internal: rejected; the original's master sets it.
    """

    name: str = setting(Text(empty=False), factory=lambda: generated_name("Experiment"))
    description: str | None = optional(Text())
    labels: tuple[str, ...] = setting(_LabelsKind(), ())
    data: dict[str, Any] = setting(PlainMapping(), factory=dict)
    workspace: str = setting(Text(), "")
    project: str = setting(Text(), "")
    entrypoint: Entrypoint | None = optional(EntrypointKind())
    hyperparameters: Space = setting(SpaceKind(), factory=Space)
    searcher: Searcher = setting(SectionKind(Searcher), factory=Searcher)
    resources: Resources = setting(SectionKind(Resources), factory=Resources)
    max_restarts: int = setting(Integer(minimum=0), 5)
    reproducibility: Reproducibility = setting(SectionKind(Reproducibility), factory=Reproducibility)
    records_per_epoch: int = setting(Integer(minimum=0), 0)
    scheduling_unit: int = setting(Integer(minimum=1), 100)
    min_validation_period: Length = setting(LengthKind(), factory=_never)
    min_checkpoint_period: Length = setting(LengthKind(), factory=_never)
    perform_initial_validation: bool = setting(Boolean(), False)
    checkpoint_policy: str = setting(Choice(("best", "all", "none")), "best")
    checkpoint_storage: CheckpointStorage = setting(SectionKind(CheckpointStorage), factory=CheckpointStorage)
    optimizations: Optimizations = setting(SectionKind(Optimizations), factory=Optimizations)
    environment: Environment = setting(SectionKind(Environment), factory=Environment)
    bind_mounts: tuple[BindMount, ...] = setting(ListOf(SectionKind(BindMount)), ())
    profiling: Profiling = setting(SectionKind(Profiling), factory=Profiling)
    log_policies: tuple[LogPolicy, ...] = setting(LogPoliciesKind(), factory=_builtin_policies)
    retention_policy: RetentionPolicy | None = optional(SectionKind(RetentionPolicy))
    preemption_timeout: int | None = optional(Integer(minimum=0, maximum=MOST_SECONDS))
    debug: bool = setting(Boolean(), False)
    integrations: Integrations | None = optional(SectionKind(Integrations))
    slurm: Slurm = setting(SectionKind(Slurm), factory=Slurm, inert=True)
    pbs: Pbs = setting(SectionKind(Pbs), factory=Pbs, inert=True)
    security: Security | None = optional(SectionKind(Security), inert=True)
    tensorboard_storage: dict[str, Any] | None = optional(PlainMapping(), inert=True)
    data_layer: Any = optional(Anything(), inert=True)
    internal: None = optional(_NothingKind())

    @classmethod
    def from_dict(cls, full: Mapping[str, Any]) -> ExperimentConfig:
        """Return the config that `to_dict` of this or another release returned.

        Unknown keys are ignored. Missing fields get their defaults, and so do invalid fields, with a warning.
        """
        folding = fold_experiment(full)
        settle_name(folding)
        settle_searcher(folding)
        return cls.parse(folding.config, Place(strict=False))

    def to_dict(self) -> dict[str, Any]:
        """Return the complete config as plain values, in the spelling that Determined accepts; `from_dict` reads it."""
        return move_extensions(super().to_dict())

    def given_part(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return those fields of `to_dict()` that are in `given`, a config in the current spelling without defaults."""
        return move_extensions(given_part(super().to_dict(), given))

    @classmethod
    def check(cls, values: Mapping[str, Any], place: Place) -> Iterator[ConfigProblem]:
        """Yield problems between fields."""
        for name, other in (("workspace", "project"), ("project", "workspace")):
            if values.get(name) and values.get(other, "?") == "":
                yield place.below(name).problem(f"requires `{other}`: give both or neither.")
        resources, optimizations = values.get("resources"), values.get("optimizations")
        reproducibility = values.get("reproducibility")
        if reproducibility is None or reproducibility.virtual_workers == 1:
            return
        where, count = (
            place.below("reproducibility").below("virtual_workers"),
            reproducibility.virtual_workers,
        )
        slots = 1 if resources is None else resources.slots_per_trial
        if slots > 1 and count % slots:
            yield where.problem(
                f"is {count}, which {slots} workers (`resources.slots_per_trial`) cannot share: use a number of slots "
                "that divides it."
            )
        if optimizations is not None and optimizations.gradient_compression:
            yield where.problem(
                "cannot be used with `optimizations.gradient_compression`: what rounding leaves would depend on the "
                "number of workers. Leave one of them out."
            )

    def hidden(self) -> dict[str, Any]:
        """Return `to_dict()` with all secrets masked."""
        return masked(self.to_dict())

    def command(self) -> list[str]:
        """Return the arguments to execute.

        Raises:
            ValueError: there is no entrypoint.
        """
        return command(self.entrypoint)

    @property
    def trial_class(self) -> str | None:
        """The entrypoint if it is a trial class, `module:Class`; else None."""
        return trial_class(self.entrypoint)
