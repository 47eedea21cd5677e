"""The contract of a resource pool: it starts tasks, watches them, reads their logs and ends them.

The master identifies tasks by allocation id. A pool keeps its state outside of the master's memory, so that a
restarted master gets the same answers for the same ids.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from det_keras.launch.environments.request import EnvironmentRequest
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.lifecycle import Exit

#: The address of this machine for itself.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Slot:
    """One unit of compute.

    Attributes:
        id: 0 to the number of the node's slots - 1.
        device: ``cpu`` or ``cuda``.
        brand: the device's product name.
        uuid: the device's UUID; empty for CPUs.
    """

    id: int
    device: str
    brand: str = ""
    uuid: str = ""


@dataclass(frozen=True)
class Node:
    """One machine of a pool.

    Attributes:
        id: its name, which no other node of the pool has.
        address: the address at which the other nodes reach it.
        slots: its slots.
    """

    id: str
    address: str
    slots: Sequence[Slot]


@dataclass(frozen=True)
class Share:
    """The slots of one node that a task is given.

    Attributes:
        node: id of the node.
        slot_ids: numbers of its slots.
        address: address of the node.
    """

    node: str
    slot_ids: tuple[int, ...]
    address: str = LOOPBACK

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Share:
        """Return the share that `to_dict` described."""
        return cls(content["node"], tuple(content["slot_ids"]), content["address"])


@dataclass(frozen=True)
class Launch:
    """A task to start.

    Attributes:
        allocation_id: its id in all later calls.
        argv: the program and its arguments.
        variables: environment variables; they override those that the node sets.
        context: archive that is unpacked into the working directory; None for an empty directory.
        shares: its slots, by node; empty for a task without slots.
        python_environment: what its config asks of its Python environment. The pool passes it on to the supervisor, as
            `python_environment` of the spec.
        is_pinned: whether it must run on the nodes of its shares, also in a pool that places tasks by itself: on others
            it might get slots that are out of use.
    """

    allocation_id: str
    argv: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    context: Path | None = None
    shares: Sequence[Share] = ()
    python_environment: EnvironmentRequest = field(default_factory=EnvironmentRequest)
    is_pinned: bool = False


class State(enum.Enum):
    """Whether an allocation is running."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class TaskState:
    """The state of an allocation.

    Attributes:
        state: PENDING while the pool waits for the machines.
        exit: how it ended; None while it has not.
        shares: the slots that it really has, where the pool places tasks by itself; None for those of its launch.
    """

    state: State
    exit: Exit | None = None
    shares: Sequence[Share] | None = None


@dataclass(frozen=True)
class LogEntry:
    """One line of a task's log.

    Attributes:
        level: the level that the line begins with.
        derived_level: the level derived from the rest of a line that begins with none.
    """

    time: datetime
    text: str
    stdtype: str
    level: str | None = None
    rank: int | None = None
    derived_level: str | None = None


class ResourcePool(abc.ABC):
    """The machines on which tasks run."""

    @property
    def description(self) -> str:
        """What the pool is, and what is wrong with it, for users."""
        return ""

    @property
    @abc.abstractmethod
    def nodes(self) -> Sequence[Node]:
        """The machines that can be used now, and their slots."""

    @property
    def slot_count(self) -> int:
        """Number of slots of all machines."""
        return sum(len(node.slots) for node in self.nodes)

    @property
    def max_slots(self) -> int | None:
        """Number of slots that a task may ask for; None where the pool may grow."""
        return self.slot_count

    @property
    def device(self) -> str:
        """What a slot is: ``cuda`` or ``cpu``."""
        return next((slot.device for node in self.nodes for slot in node.slots), "cpu")

    def refuse_oversize(self, field: str, slots: int) -> None:
        """Refuse a task that needs more slots than there can be.

        Args:
            field: the field of the config that says so, for the message.
            slots: its value.

        Raises:
            InvalidArgumentError: there are fewer.
        """
        if self.max_slots is not None and slots > self.max_slots:
            raise InvalidArgumentError(
                f"slots requested exceed capacity: `{field}` is {slots} and this machine has {self.max_slots}."
            )

    @property
    def is_one_machine(self) -> bool:
        """Whether all tasks run on the master's machine, and share its disk."""
        return True

    @property
    def slotless_node(self) -> str | None:
        """Name of the node on which tasks without slots run; None if it is not one of `nodes`."""
        return None

    @property
    def starts_at_once(self) -> bool:
        """Whether a task runs once `launch` has returned; otherwise `look` tells when it does."""
        return False

    def demand(self, wanted: Sequence[int]) -> None:  # noqa: B027 - optional
        """Learn which tasks wait because they do not fit, so that a pool that can grow does.

        Args:
            wanted: number of slots of each task, in the order in which they will start.
        """

    def start(self, live: Mapping[str, Sequence[Share]]) -> None:  # noqa: B027 - optional
        """Connect with the machines; `launch` and the others are called after this.

        Args:
            live: the attempts that an earlier master left running, with their slots.

        Raises:
            DetError: they cannot be reached.
        """

    def stop(self) -> None:  # noqa: B027 - optional
        """Disconnect; tasks go on."""

    def refusal(self, request: EnvironmentRequest) -> str | None:
        """Return why no task can get this environment; None if that is only known on the machine that runs it."""
        return None

    def obstacle(self) -> str | None:
        """Return why no task can be started at the moment; None if nothing is known to be in the way."""
        return None

    @abc.abstractmethod
    def launch(self, launch: Launch) -> None:
        """Start a task.

        Raises:
            OSError: the task cannot be started.
        """

    @abc.abstractmethod
    def look(self, allocation_id: str) -> TaskState:
        """Return the state of an allocation. Once it is ENDED, no process of it runs or will ever start.

        Then its whole log can be read, or is stored already. The answer stays the same until `release`.
        """

    def release(self, allocation_id: str) -> None:  # noqa: B027 - optional
        """Give back the machines of an ended allocation; called once its end is recorded."""

    def kept(self) -> Iterable[str]:
        """Return the allocations of which there are files on the master's machine; they stay until `remove`."""
        return ()

    @abc.abstractmethod
    def read_log(self, allocation_id: str, offset: int) -> tuple[list[LogEntry], int]:
        """Return log entries from `offset`, and the offset of the next; no entries if there are no more yet.

        Tasks on other machines send their log to the master themselves: for those there is nothing to read.
        """

    @abc.abstractmethod
    def kill(self, allocation_id: str, *, force: bool) -> None:
        """Kill a task, without waiting for its end; with `force`, kill the supervising process as well."""

    @abc.abstractmethod
    def remove(self, allocation_id: str) -> None:
        """Delete the files of an ended allocation, including its log."""
