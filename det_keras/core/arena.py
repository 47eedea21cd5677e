"""Memory for the copied variables, kept from one checkpoint to the next and shared with the writer.

Copying into fresh memory costs a page fault every 4 KiB, ten times the copy itself; so the memory is made
once, and the writing process touches it first. It is an anonymous file in memory, not one in /dev/shm,
which containers keep small.
"""

from __future__ import annotations

import mmap
import os

__all__ = ["Arena", "open_arena"]


class Arena:
    """Shared memory of a fixed size.

    Args:
        size_bytes: at least 1.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = max(size_bytes, 1)
        self.descriptor = os.memfd_create("det-checkpoint")
        os.ftruncate(self.descriptor, self.size_bytes)
        self._map = mmap.mmap(self.descriptor, self.size_bytes)
        self.memory = memoryview(self._map)

    def close(self) -> None:
        """Give the memory back, as soon as nobody looks into it any more."""
        self.memory.release()
        os.close(self.descriptor)


def open_arena(descriptor: int, size_bytes: int) -> memoryview:
    """Return the memory of an arena that another process made, with all its pages in place."""
    mapped = mmap.mmap(descriptor, size_bytes)
    memory = memoryview(mapped)
    for offset in range(0, size_bytes, mmap.PAGESIZE):
        # Touch without changing: the other side may have written already.
        memory[offset] |= 0
    return memory
