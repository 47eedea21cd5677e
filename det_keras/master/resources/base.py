"""The contract of a place where tasks run: it starts them, watches them, reads their logs and ends them.

The master tells a pool what to run by allocation id. A pool keeps what it needs to know outside of the
master's memory, so that a restarted master asks about the same ids and gets the same answers.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from det_keras.master.lifecycle import Exit

__all__ = ["Launch", "LogEntry", "ResourcePool", "Slot", "State", "TaskState"]


@dataclass(frozen=True)
class Slot:
    """One unit of compute.

    Attributes:
        id: 0 to the number of slots - 1.
        device: ``cpu`` or ``cuda``.
        brand: what the device calls itself.
        uuid: of the device; empty for CPUs.
    """

    id: int
    device: str
    brand: str = ""
    uuid: str = ""


@dataclass(frozen=True)
class Launch:
    """What to run.

    Attributes:
        allocation_id: names it from now on.
        argv: the program and its arguments.
        variables: of the environment, over the pool's own.
        context: archive of files to unpack into the working directory; None for an empty one.
    """

    allocation_id: str
    argv: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    context: Path | None = None


class State(enum.Enum):
    """What a pool knows of an allocation."""

    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class TaskState:
    """The state of an allocation, and how it ended if it did."""

    state: State
    exit: Exit | None = None


@dataclass(frozen=True)
class LogEntry:
    """One line of a task's log."""

    time: datetime
    text: str
    stdtype: str
    level: str | None = None
    rank: int | None = None


class ResourcePool(abc.ABC):
    """A place with slots where tasks run."""

    @property
    @abc.abstractmethod
    def slots(self) -> Sequence[Slot]:
        """The slots of the place."""

    @property
    @abc.abstractmethod
    def threads_per_slot(self) -> int:
        """How many threads of computation the process on one slot should start."""

    @abc.abstractmethod
    def working_directory(self, allocation_id: str) -> Path:
        """Return where a task's process starts."""

    @abc.abstractmethod
    def launch(self, launch: Launch) -> None:
        """Start a task.

        Raises:
            OSError: it cannot be started.
        """

    @abc.abstractmethod
    def look(self, allocation_id: str) -> TaskState:
        """Return how an allocation is doing. Once it is ENDED nothing of it runs, or ever will."""

    @abc.abstractmethod
    def read_log(self, allocation_id: str, offset: int) -> tuple[list[LogEntry], int]:
        """Return some entries from `offset` on, and the offset behind them; none if there are no more yet."""

    @abc.abstractmethod
    def kill(self, allocation_id: str, *, force: bool) -> None:
        """End a task at once; with `force` whatever stands in the way as well. It ends a little later."""

    @abc.abstractmethod
    def remove(self, allocation_id: str) -> None:
        """Forget an ended allocation and delete what it left, its log included."""
