"""Memory for the copied variables, kept from one checkpoint to the next and shared with the writer.

Copying into fresh memory costs a page fault every 4 KiB, ten times the copy itself; so the memory is made
once, and made ready in the background. It is an anonymous file in memory, not one in /dev/shm, which
containers keep small. There is buffer for two states, one being written and one that waits; the buffer of the
second takes no memory until it is used.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

__all__ = ["Buffer", "BufferPool", "open_buffer_pool"]


class Buffer:
    """The part of an buffer_pool that holds one state.

    Attributes:
        offset: where it begins in the buffer_pool, in bytes.
        memory: its bytes.
        is_ready: its pages are in place: copying into it costs no page faults.
        is_free: no state is in it.
    """

    def __init__(self, offset: int, memory: memoryview) -> None:
        self.offset = offset
        self.memory = memory
        self.is_ready = False
        self.is_free = True

    def make_ready(self) -> None:
        """Put the pages in place; other threads go on meanwhile."""
        # Reading maps the pages and cannot collide with a copy into them; NumPy lets go of the interpreter.
        np.frombuffer(self.memory, np.uint8)[:: mmap.PAGESIZE].max()
        self.is_ready = True


class BufferPool:
    """Shared memory with buffer for two states.

    Args:
        state_bytes: size of a state, at least 1.
    """

    def __init__(self, state_bytes: int) -> None:
        self.state_bytes = max(state_bytes, 1)
        room_bytes = -(-self.state_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.size_bytes = 2 * room_bytes
        self.descriptor = os.memfd_create("det-checkpoint")
        os.ftruncate(self.descriptor, self.size_bytes)
        self._map = mmap.mmap(self.descriptor, self.size_bytes)
        self._memory = memoryview(self._map)
        self.buffers = [
            Buffer(offset, self._memory[offset : offset + room_bytes]) for offset in (0, room_bytes)
        ]

    def close(self) -> None:
        """Give the memory back, as soon as nobody looks into it any more."""
        for buffer in self.buffers:
            buffer.memory.release()
        self._memory.release()
        os.close(self.descriptor)


def open_buffer_pool(descriptor: int, size_bytes: int) -> memoryview:
    """Return the memory of an buffer_pool that another process made."""
    return memoryview(mmap.mmap(descriptor, size_bytes))
