"""A file that is written once, from front to back, past the page cache where the file system can.

Hundreds of megabytes that pass through the page cache cost the kernel seconds of processor time, which
training is waiting for, and push out what training reads. The content is hashed on the way, so that nobody
has to read it again for the manifest.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from pathlib import Path

__all__ = ["StreamedFile"]

# A multiple of every block size in use, which direct writing asks for, and small enough for the cache.
_BLOCK_BYTES = 1 << 20


class StreamedFile:
    """A new file; a context manager that writes what is left at its end.

    Args:
        path: made, or emptied.

    Raises:
        OSError: the disk is full or failing.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        # Anonymous memory begins at a page, which direct writing asks for.
        self._block = memoryview(mmap.mmap(-1, _BLOCK_BYTES))
        self._filled = 0
        self._hash = hashlib.sha256()
        self._is_direct: bool | None = None

    @property
    def sha256(self) -> str:
        """The hexadecimal hash of what was written; complete once the file is closed."""
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
        """Do nothing; a writer of archives calls it between members, and half a block stays here."""

    def close(self) -> None:
        """Write what is left and close the file."""
        try:
            if self._is_direct:
                # The last part is no whole block.
                self._set_direct(False)
            if self._filled:
                self._write_out()
        finally:
            self._file.close()

    def __enter__(self) -> StreamedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def _write_block(self) -> None:
        if self._is_direct is None:
            self._is_direct = self._set_direct(True)
        try:
            self._write_out()
        except OSError:
            # Some file systems take the flag and then refuse to write.
            if not self._is_direct or not self._set_direct(False):
                raise
            self._is_direct = False
            self._write_out()

    def _write_out(self) -> None:
        view = self._block[: self._filled]
        position = self._file.tell()
        try:
            while view.nbytes:
                view = view[self._file.write(view) or 0 :]
        except OSError:
            # So that another try does not append to half a block.
            self._file.seek(position)
            raise
        self._hash.update(self._block[: self._filled])
        self._filled = 0

    def _set_direct(self, wanted: bool) -> bool:
        descriptor = self._file.fileno()
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
        except OSError:
            return False
        return True
