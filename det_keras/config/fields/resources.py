"""The `resources` section: slots, priority, weight, and fields for containers, which have no effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from det_keras.config.kinds import Boolean, Integer, Kind, ListOf, Number, Place, Text, shown
from det_keras.config.section import Section, SectionKind, optional, setting
from det_keras.errors import ConfigProblem

_SIZE = re.compile(r"([0-9]*[.])?[0-9]+ ?(([kmgtpKMGTP]([iI]?[bB])?)|[bB])?")


class _SizeKind(Kind[Any]):
    def parse(self, raw: Any, place: Place) -> Any:
        is_bytes = isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0
        if is_bytes or (isinstance(raw, str) and _SIZE.fullmatch(raw)):
            return raw
        raise place.error(
            f"must be a number of bytes or text such as `4G` or `512 MiB`, received {shown(raw)}."
        )


@dataclass(frozen=True)
class Device(Section):
    """A device file of a container."""

    host_path: str | None = optional(Text(empty=False), required=True)
    container_path: str | None = optional(Text(empty=False), required=True)
    mode: str = setting(Text(), "mrw")


class _DeviceKind(SectionKind[Device]):
    def parse(self, raw: Any, place: Place) -> Device:
        if not isinstance(raw, str):
            return super().parse(raw, place)
        parts = raw.split(":")
        if len(parts) not in (2, 3):
            raise place.error(f"must be `host:container` or `host:container:mode`, received {raw!r}.")
        return super().parse(dict(zip(("host_path", "container_path", "mode"), parts, strict=False)), place)


class _ContainerPath(Text):
    def parse(self, raw: Any, place: Place) -> str:
        if raw == ".":
            raise place.error("must not be `.`. Write the path of a directory.")
        return super().parse(raw, place)


@dataclass(frozen=True)
class BindMount(Section):
    """A directory that a container would see.

    Attributes:
        host_path: absolute path on the machine.
        container_path: path in the container.
        read_only: whether the container may only read.
        propagation: propagation mode of the mount.
    """

    host_path: str | None = optional(Text(starts_with="/"), required=True)
    container_path: str | None = optional(_ContainerPath(empty=False), required=True)
    read_only: bool = setting(Boolean(), False)
    propagation: str = setting(Text(), "rprivate")


@dataclass(frozen=True)
class _SharedResources(Section):
    """The fields that experiments and jobs share.

    Attributes:
        weight: share of the slots in proportion to others, where the master's scheduler is ``fair_share``.
        priority: from 1 to 99; smaller numbers are scheduled first. None means 42.
    """

    weight: float = setting(Number(above=0), 1)
    priority: int | None = optional(Integer(minimum=1, maximum=99))
    resource_pool: str = setting(Text(), "", inert=True)
    shm_size: int | str | None = optional(_SizeKind(), inert=True)
    is_single_node: bool | None = optional(Boolean(), inert=True)
    devices: tuple[Device, ...] = setting(ListOf(_DeviceKind(Device)), (), inert=True)
    native_parallel: bool = setting(Boolean(), False, inert=True)
    agent_label: str | None = optional(Text(), inert=True)


@dataclass(frozen=True)
class Resources(_SharedResources):
    """What a trial and an experiment may occupy.

    Attributes:
        slots_per_trial: slots of each trial.
        max_slots: largest number of slots that the experiment uses at once; None for no limit.
    """

    slots_per_trial: int = setting(Integer(minimum=0), 1)
    max_slots: int | None = optional(Integer(minimum=0))

    @classmethod
    def check(cls, values: Mapping[str, Any], place: Place) -> Iterator[ConfigProblem]:
        """Yield problems between fields."""
        per_trial, most = values.get("slots_per_trial"), values.get("max_slots")
        if per_trial is not None and most is not None and most < per_trial:
            yield place.below("max_slots").problem(
                f"is {most}, fewer than the {per_trial} slots of one trial (`slots_per_trial`)."
            )


@dataclass(frozen=True)
class JobResources(_SharedResources):
    """What a generic job occupies.

    Attributes:
        slots: slots of the job.
    """

    slots: int = setting(Integer(minimum=0), 1)
