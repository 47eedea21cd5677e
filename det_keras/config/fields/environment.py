"""The `environment` section: the variables and the packages of a task.

Its fields for containers have no effect.
"""

# ruff: noqa: RUF009 - `setting` and `optional` return dataclass fields
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from det_keras.config.kinds import Boolean, Integer, Kind, ListOf, MapOf, Place, PlainMapping, Text, shown
from det_keras.config.section import Section, SectionKind, optional, setting
from det_keras.errors import ConfigError, ConfigProblem

_FILE_OPTION = re.compile(r"-(?:[rce](?![a-z])|-requirements?|-constraints?|-editable)")

#: The devices in a mapping by device.
DEVICES = ("cpu", "cuda", "rocm")

#: The variables that the master and the launchers set for every task; a config cannot override them.
RESERVED_VARIABLES = frozenset(
    {
        "DET_AGENT_ID",
        "DET_ALLOCATION_ID",
        "DET_CHIEF_IP",
        "DET_CLUSTER_ID",
        "DET_CONTAINER_ID",
        "DET_EXPERIMENT_CONFIG",
        "DET_EXPERIMENT_ID",
        "DET_HPARAMS",
        "DET_INTER_NODE_NETWORK_INTERFACE",
        "DET_KERAS_COPY",
        "DET_KERAS_HOME",
        "DET_LATEST_CHECKPOINT",
        "DET_MASTER",
        "DET_MASTER_ADDR",
        "DET_MASTER_CERT_FILE",
        "DET_MASTER_CERT_NAME",
        "DET_MASTER_HOST",
        "DET_MASTER_ID",
        "DET_MASTER_PORT",
        "DET_RESOURCES_ID",
        "DET_RESOURCES_TYPE",
        "DET_RUN_DIR",
        "DET_SEGMENT_ENABLED",
        "DET_SESSION_TOKEN",
        "DET_SLOT_IDS",
        "DET_STEPS_COMPLETED",
        "DET_TASK_CONFIG",
        "DET_TASK_ID",
        "DET_TASK_LOGGING_METADATA",
        "DET_TASK_TYPE",
        "DET_TRIAL_ID",
        "DET_TRIAL_RUN_ID",
        "DET_TRIAL_SEED",
        "DET_USER",
        "DET_USER_TOKEN",
        "DET_USE_TLS",
        "DET_WORKDIR",
    }
)


@dataclass(frozen=True)
class EnvironmentVariables:
    """`NAME=VALUE` entries for each device; later entries override earlier ones."""

    cpu: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    rocm: tuple[str, ...] = ()

    def entries(self, device: str) -> tuple[str, ...]:
        """Return the entries for `device`: `cpu`, `cuda` (also called `gpu`) or `rocm`.

        Raises:
            ValueError: the device is unknown.
        """
        device = "cuda" if device == "gpu" else device
        if device not in DEVICES:
            raise ValueError(f"{device!r} is not a device. Use one of {', '.join(DEVICES)}.")
        entries: tuple[str, ...] = getattr(self, device)
        return entries

    def without_value(self) -> list[str]:
        """Return the entries without `=`, each once."""
        return list(
            dict.fromkeys(entry for name in DEVICES for entry in self.entries(name) if "=" not in entry)
        )


class _EntryKind(Kind[str]):
    def parse(self, raw: Any, place: Place) -> str:
        entry = Text().parse(raw, place)
        name = entry.partition("=")[0]
        if not name:
            raise place.error(f"has no name, received {entry!r}. Write NAME=VALUE.")
        if "\0" in entry:
            raise place.error(f"must not contain a null character, received {entry!r}.")
        if name in RESERVED_VARIABLES:
            raise place.error(f"`{name}` is set by the master and cannot be overridden.")
        return entry


class _VariablesKind(Kind[EnvironmentVariables]):
    def parse(self, raw: Any, place: Place) -> EnvironmentVariables:
        if isinstance(raw, (list, tuple)):
            entries = ListOf(_EntryKind()).parse(raw, place)
            return EnvironmentVariables(entries, entries, entries)
        if not isinstance(raw, Mapping):
            raise place.error(
                f"must be a list of NAME=VALUE, or a mapping of devices to such lists, received {shown(raw)}."
            )
        return EnvironmentVariables(**MapOf(_OptionalList(_EntryKind()), DEVICES).parse(raw, place))

    def dump(self, value: EnvironmentVariables) -> Any:
        if value.cpu == value.cuda == value.rocm:
            return list(value.cpu)
        return {name: list(value.entries(name)) for name in DEVICES}


class _OptionalList(ListOf[str]):
    def parse(self, raw: Any, place: Place) -> tuple[str, ...]:
        return () if raw is None else super().parse(raw, place)


class _ImageKind(Kind[Any]):
    def parse(self, raw: Any, place: Place) -> Any:
        if isinstance(raw, Mapping):
            return MapOf(Text(), DEVICES).parse(
                {key: value for key, value in raw.items() if value is not None}, place
            )
        try:
            return Text().parse(raw, place)
        except ConfigError:
            raise place.error(
                f"must be text, or a mapping of {', '.join(DEVICES)} to text, received {shown(raw)}."
            ) from None


class _InterpreterKind(Kind[str]):
    """The path of an interpreter on the machine that runs the task."""

    def parse(self, raw: Any, place: Place) -> str:
        path = _line(raw, place)
        if not path.startswith(("/", "~/")):
            raise place.error(
                f"must be the absolute path of a Python interpreter, such as /usr/bin/python3, received {shown(path)}."
            )
        return path


class _RequirementKind(Kind[str]):
    """A line of a requirements file, except those that name other files."""

    def parse(self, raw: Any, place: Place) -> str:
        line = _line(raw, place)
        word = _FILE_OPTION.match(line)
        if word is not None:
            raise place.error(
                f"must be a requirement, received {shown(line)}. Put `{word[0]}` into a file of the context directory, "
                "and name it in `environment.requirements`."
            )
        return line


class _RequirementsKind(Kind[tuple[str, ...]]):
    def parse(self, raw: Any, place: Place) -> tuple[str, ...]:
        if isinstance(raw, str):
            hint = (
                f" Name a file with `requirements: {raw}`." if raw.endswith(".txt") else f" Write `[{raw}]`."
            )
            raise place.error(f"must be a list of requirements, received {shown(raw)}.{hint}")
        return ListOf(_RequirementKind()).parse(raw, place)

    def dump(self, value: tuple[str, ...]) -> list[str]:
        return list(value)


class _RequirementsFileKind(Kind[str]):
    """The path of a file in the context directory."""

    def parse(self, raw: Any, place: Place) -> str:
        if isinstance(raw, (list, tuple)):
            raise place.error(
                f"must be the name of a file, received {shown(raw)}. Give a list of requirements as `environment.pip`."
            )
        name = _line(raw, place)
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise place.error(
                f"must be a path in the context directory, such as requirements.txt, received {shown(name)}."
            )
        return str(path)


def _line(raw: Any, place: Place) -> str:
    text = Text(empty=False).parse(raw, place)
    if not text.strip() or not text.isprintable():
        raise place.error(f"must be one line of text, received {shown(text)}.")
    return text.strip()


@dataclass(frozen=True)
class RegistryAuth(Section):
    """The account of an image registry."""

    username: str | None = optional(Text())
    password: str | None = optional(Text(secret=True))
    serveraddress: str | None = optional(Text())
    email: str | None = optional(Text())
    auth: str | None = optional(Text(secret=True), omit_null=True)
    identitytoken: str | None = optional(Text(secret=True), omit_null=True)
    registrytoken: str | None = optional(Text(secret=True), omit_null=True)


@dataclass(frozen=True)
class ProxyPort(Section):
    """A port of a container."""

    proxy_port: int | None = optional(Integer(minimum=0, maximum=65535), required=True)
    proxy_tcp: bool = setting(Boolean(), False)
    unauthenticated: bool = setting(Boolean(), False)
    default_service_id: bool = setting(Boolean(), False)


@dataclass(frozen=True)
class Environment(Section):
    """The surroundings of a task's process.

    Attributes:
        environment_variables: entries ``NAME=VALUE``, as one list or as a list for each of ``cpu``, ``cuda`` and
            ``rocm``. Variables that the master sets are rejected.
        python: path of the Python interpreter of the task, on the machine that runs it; None for the master's.
        pip: requirements, such as ``pandas<3``, that are installed into an environment of the task on top of the
            interpreter.
        requirements: name of a requirements file in the context directory. Together with `pip`, both are installed.
    """

    environment_variables: EnvironmentVariables = setting(_VariablesKind(), factory=EnvironmentVariables)
    python: str | None = optional(_InterpreterKind())
    pip: tuple[str, ...] = setting(_RequirementsKind(), ())
    requirements: str | None = optional(_RequirementsFileKind())
    image: Any = optional(_ImageKind(), inert=True)
    force_pull_image: bool = setting(Boolean(), False, inert=True)
    registry_auth: RegistryAuth | None = optional(SectionKind(RegistryAuth), inert=True)
    add_capabilities: tuple[str, ...] = setting(ListOf(Text()), (), inert=True)
    drop_capabilities: tuple[str, ...] = setting(ListOf(Text()), (), inert=True)
    pod_spec: dict[str, Any] | None = optional(PlainMapping(), inert=True)
    proxy_ports: tuple[ProxyPort, ...] = setting(ListOf(SectionKind(ProxyPort)), (), inert=True)
    ports: dict[str, int] = setting(MapOf(Integer(minimum=0, maximum=65535)), factory=dict, inert=True)

    def environment_variables_for(self, device: str) -> dict[str, str]:
        """Return the variables of a task that runs on `device`: `cpu`, `cuda` (or `gpu`) or `rocm`.

        An entry without `=` sets an empty value. Of two entries with the same name, the later counts.
        """
        pairs = (entry.partition("=") for entry in self.environment_variables.entries(device))
        return {name: value for name, _, value in pairs}

    def notices(self, place: Place) -> Iterator[ConfigProblem]:
        """Yield notices about the variables."""
        for entry in self.environment_variables.without_value():
            message = f"{entry!r} has no `=`; the variable is set to an empty value."
            yield place.below("environment_variables").problem(message)
