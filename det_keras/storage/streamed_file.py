"""A file that is written once, sequentially, bypassing the page cache where the file system allows it.

Hundreds of megabytes through the page cache take seconds of processor time in the kernel, which training needs, and
evict the data that training reads. The content is hashed while it is written, so that it need not be read again for
the manifest. A thread hashes each full block while the disk takes it: one after the other would take twice as long.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# A multiple of all common block sizes, as direct I/O requires, and small enough for the processor's cache.
_BLOCK_BYTES = 1 << 20
# Blocks of closed files: for a small file, the page faults of a new one would take longer than writing it.
_spare_blocks: deque[memoryview] = deque(maxlen=1)


class StreamedFile:
    """A new file; as a context manager it writes the remaining content at its end.

    Args:
        path: created, or truncated.

    Raises:
        OSError: the disk is full or failing.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        try:
            self._block = _spare_blocks.pop()
        except IndexError:
            # Anonymous memory is aligned to a page, as direct I/O requires.
            self._block = memoryview(mmap.mmap(-1, _BLOCK_BYTES))
        self._filled = 0
        self._hash = hashlib.sha256()
        self._hasher: ThreadPoolExecutor | None = None
        self._is_direct: bool | None = None

    @property
    def sha256(self) -> str:
        """The hexadecimal hash of the content; complete after the file is closed."""
        return self._hash.hexdigest()

    def write(self, content: bytes | memoryview) -> int:
        """Append `content` and return its size in bytes."""
        view = memoryview(content)
        position = 0
        while position < view.nbytes:
            part = view[position : position + _BLOCK_BYTES - self._filled]
            self._block[self._filled : self._filled + part.nbytes] = part
            self._filled += part.nbytes
            position += part.nbytes
            if self._filled == _BLOCK_BYTES:
                self._write_block()
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: writers of archives call it between members, but only whole blocks are written."""

    def close(self) -> None:
        """Write the remaining content, flush the file to the disk and close it."""
        try:
            if self._is_direct:
                # The last part is shorter than a block.
                self._set_direct(False)
            if self._filled:
                self._write_out()
                self._hash.update(self._block[: self._filled])
            os.fsync(self._file.fileno())
        finally:
            self._release()
        _spare_blocks.append(self._block)

    def __enter__(self) -> StreamedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release()

    def _release(self) -> None:
        self._file.close()
        if self._hasher is not None:
            self._hasher.shutdown()

    def _write_block(self) -> None:
        if self._is_direct is None:
            self._is_direct = self._set_direct(True)
        if self._hasher is None:
            self._hasher = ThreadPoolExecutor(1, thread_name_prefix="det-hash")
        hashed = self._hasher.submit(self._hash.update, self._block)
        try:
            self._write_out()
        except OSError:
            # Some file systems accept the flag, but then refuse to write.
            if not self._is_direct or not self._set_direct(False):
                raise
            self._is_direct = False
            self._write_out()
        hashed.result()
        self._filled = 0

    def _write_out(self) -> None:
        view = self._block[: self._filled]
        position = self._file.tell()
        try:
            while view.nbytes:
                view = view[self._file.write(view) or 0 :]
        except OSError:
            # Another attempt must not append to a partly written block.
            self._file.seek(position)
            raise

    def _set_direct(self, wanted: bool) -> bool:
        descriptor = self._file.fileno()
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
        except OSError:
            return False
        return True
