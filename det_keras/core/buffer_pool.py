"""Memory for the copied variables, reused for every checkpoint and shared with the writer.

Copying into new memory causes a page fault every 4 KiB, which takes ten times as long as the copy. The memory is
therefore allocated once and made ready in the background. It is an anonymous file in memory, not in /dev/shm, which is
small in containers. There are two buffers, one for the state that is being written and one for the next. The second
takes no memory until it is used.
"""

from __future__ import annotations

import mmap
import os

import numpy as np


class Buffer:
    """The part of a buffer pool that holds one state.

    Attributes:
        offset: its offset in the buffer pool, in bytes.
        memory: its bytes.
        is_ready: whether its pages are mapped, so that copying into it causes no page faults.
        is_free: whether it holds no state.
    """

    def __init__(self, offset: int, memory: memoryview) -> None:
        self.offset = offset
        self.memory = memory
        self.is_ready = False
        self.is_free = True

    def make_ready(self) -> None:
        """Map the pages; other threads continue in the meantime."""
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
        buffer_bytes = -(-self.state_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.size_bytes = 2 * buffer_bytes
        self.descriptor = os.memfd_create("det-checkpoint")
        os.ftruncate(self.descriptor, self.size_bytes)
        self._map = mmap.mmap(self.descriptor, self.size_bytes)
        self._memory = memoryview(self._map)
        self.buffers = [
            Buffer(offset, self._memory[offset : offset + buffer_bytes]) for offset in (0, buffer_bytes)
        ]

    def close(self) -> None:
        """Release the memory; there must be no views of it any more."""
        for buffer in self.buffers:
            buffer.memory.release()
        self._memory.release()
        os.close(self.descriptor)


def open_buffer_pool(descriptor: int, size_bytes: int) -> memoryview:
    """Return the memory of a buffer pool that another process created."""
    return memoryview(mmap.mmap(descriptor, size_bytes))
