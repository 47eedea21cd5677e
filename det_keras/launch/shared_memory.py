"""The memory and the pipes that the ranks of this node share; made by the launcher, inherited by the ranks."""

from __future__ import annotations

import os
import socket

from det_keras.protocol.ends import Ends, memory_bytes

__all__ = ["SharedMemory"]


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
