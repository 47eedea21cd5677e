"""The contract of a resource pool: it starts tasks, watches them, reads their logs and ends them.

The master identifies tasks by allocation id. A pool keeps its state outside of the master's memory, so that a
restarted master gets the same answers for the same ids.
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
        brand: the device's product name.
        uuid: the device's UUID; empty for CPUs.
    """

    id: int
    device: str
    brand: str = ""
    uuid: str = ""


@dataclass(frozen=True)
class Launch:
    """A task to start.

    Attributes:
        allocation_id: its id in all later calls.
        argv: the program and its arguments.
        variables: environment variables; they override the pool's own.
        context: archive that is unpacked into the working directory; None for an empty directory.
    """

    allocation_id: str
    argv: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    context: Path | None = None


class State(enum.Enum):
    """Whether an allocation is running."""

    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class TaskState:
    """The state of an allocation, and how it ended if it has ended."""

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
    """A number of slots on which tasks run."""

    @property
    @abc.abstractmethod
    def slots(self) -> Sequence[Slot]:
        """The slots of the pool."""

    @property
    @abc.abstractmethod
    def threads_per_slot(self) -> int:
        """Number of computing threads that the process on one slot should start."""

    @abc.abstractmethod
    def working_directory(self, allocation_id: str) -> Path:
        """Return the working directory of a task's process."""

    @abc.abstractmethod
    def launch(self, launch: Launch) -> None:
        """Start a task.

        Raises:
            OSError: the task cannot be started.
        """

    @abc.abstractmethod
    def look(self, allocation_id: str) -> TaskState:
        """Return the state of an allocation. Once it is ENDED, no process of it runs or will ever start."""

    @abc.abstractmethod
    def read_log(self, allocation_id: str, offset: int) -> tuple[list[LogEntry], int]:
        """Return log entries from `offset`, and the offset of the next; no entries if there are no more yet."""

    @abc.abstractmethod
    def kill(self, allocation_id: str, *, force: bool) -> None:
        """Kill a task, without waiting for its end; with `force`, kill the supervising process as well."""

    @abc.abstractmethod
    def remove(self, allocation_id: str) -> None:
        """Delete the files of an ended allocation, including its log."""
