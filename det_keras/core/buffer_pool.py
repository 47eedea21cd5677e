"""Memory for the copied variables, kept from one checkpoint to the next and shared with the writer.

Copying into fresh memory costs a page fault every 4 KiB, ten times the copy itself. So the memory is allocated once,
and made ready in the background. It is an anonymous file in memory, not one in /dev/shm, which containers keep small.
There are two buffers, one for the state that is being written and one for the next. The second takes no memory until it
is used.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

__all__ = ["Buffer", "BufferPool", "open_buffer_pool"]


class Buffer:
    """The part of a buffer pool that holds one state.

    Attributes:
        offset: its offset in the buffer pool, in bytes.
        memory: its bytes.
        is_ready: its pages are mapped: copying into it causes no page faults.
        is_free: it holds no state.
    """

    def __init__(self, offset: int, memory: memoryview) -> None:
        self.offset = offset
        self.memory = memory
        self.is_ready = False
        self.is_free = True

    def make_ready(self) -> None:
        """Map the pages; other threads continue meanwhile."""
        # Reading maps the pages and cannot conflict with a copy into them; NumPy releases the interpreter lock.
        np.frombuffer(self.memory, np.uint8)[:: mmap.PAGESIZE].max()
        self.is_ready = True


class BufferPool:
    """Shared memory with buffers for two states.

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
        """Release the memory once no view of it exists any more."""
        for buffer in self.buffers:
            buffer.memory.release()
        self._memory.release()
        os.close(self.descriptor)


def open_buffer_pool(descriptor: int, size_bytes: int) -> memoryview:
    """Return the memory of a buffer pool that another process created."""
    return memoryview(mmap.mmap(descriptor, size_bytes))
