"""The memory and the pipes that the ranks of a machine share: the launcher makes them, and the ranks inherit them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass

#: Ways between the ranks that do not wait for each other: for the training, and for pipelines that read ahead of it.
CHANNELS = 2

#: The data of a rank in one half of the memory; a longer array travels in pieces.
SLOT_BYTES = 4 << 20
#: What precedes the data of a rank.
HEADER_BYTES = 256

#: Names the variable that has the ends of a rank, for each channel.
ENDS_VARIABLE = "DET_KERAS_COLLECTIVE"


def memory_bytes(size: int) -> int:
    """Return the size of the memory that `size` ranks share: two halves with a slot for each rank."""
    return 2 * size * (HEADER_BYTES + SLOT_BYTES)


@dataclass(frozen=True)
class Ends:
    """The descriptors that a rank inherits for one channel.

    Attributes:
        memory: the memory that the ranks of a machine share.
        identity: device and inode of `memory`, by which a process that did not inherit it notices this.
        inbox: the read end of the pipe through which others tell this rank that they have arrived.
        outboxes: the write ends of the others' pipes, by local rank; -1 for this rank.
        listener: a listening socket for the first ranks of the other machines; -1 for none.
        port: the port on which the first rank of the first machine listens; 0 on a single machine.
    """

    memory: int
    identity: tuple[int, int]
    inbox: int
    outboxes: tuple[int, ...]
    listener: int = -1
    port: int = 0

    @property
    def local(self) -> tuple[int, ...]:
        """The descriptors that lead to ranks of this machine."""
        return (self.memory, self.inbox, *(outbox for outbox in self.outboxes if outbox >= 0))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors."""
        return (*self.local, *([self.listener] if self.listener >= 0 else []))

    @staticmethod
    def to_text(channels: Sequence[Ends]) -> str:
        """Return the value of the variable."""
        return json.dumps([asdict(ends) for ends in channels])

    @classmethod
    def from_text(cls, text: str) -> list[Ends]:
        """Return what `to_text` made the text of.

        Raises:
            ValueError: the text has another form.
        """
        try:
            return [
                cls(
                    **{**values, "identity": tuple(values["identity"]), "outboxes": tuple(values["outboxes"])}
                )
                for values in json.loads(text)
            ]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{text!r} does not describe the ends of a rank") from error


class SharedMemory:
    """A channel: memory for `size` ranks, and a pipe to each of them.

    Args:
        size: number of ranks of this node.
        listener: a listening socket for the first ranks of other nodes, which the first rank inherits.
        port: where the first rank of the first node listens; None on a single node.

    Raises:
        OSError: the system has no descriptors or no memory left.
    """

    def __init__(self, size: int, *, listener: socket.socket | None = None, port: int | None = None) -> None:
        self._pipes = [os.pipe() for _ in range(size)]
        self._memory = os.memfd_create("det_keras")
        self._listener = listener
        # Pages are taken when they are first written.
        os.ftruncate(self._memory, memory_bytes(size))
        self._port = port or 0

    def ends(self, local_rank: int) -> Ends:
        """Return the ends of one rank."""
        found = os.fstat(self._memory)
        has_listener = local_rank == 0 and self._listener is not None
        return Ends(
            memory=self._memory,
            identity=(found.st_dev, found.st_ino),
            inbox=self._pipes[local_rank][0],
            outboxes=tuple(
                -1 if place == local_rank else write for place, (_, write) in enumerate(self._pipes)
            ),
            listener=self._listener.fileno() if has_listener and self._listener is not None else -1,
            port=self._port,
        )

    def close(self) -> None:
        """Close the launcher's own ends, once the ranks have inherited theirs."""
        for descriptor in (self._memory, *(end for pipe in self._pipes for end in pipe)):
            os.close(descriptor)
        if self._listener is not None:
            self._listener.close()
        self._pipes = []
