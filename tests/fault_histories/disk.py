"""A small disk for one data root, which can be made full: a file system in memory of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from pathlib import Path

__all__ = ["Disk"]

_SIZE_MIB = 48
_PAGE_BYTES = 1 << 12


class Disk:
    """A file system that is mounted at a directory.

    Args:
        directory: an empty directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        options = f"size={_SIZE_MIB}m,mode=0700"
        # Only root may mount; without it the data root is in the directory itself, and never full.
        self.can_be_full = os.geteuid() == 0 and not subprocess.call(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], stderr=subprocess.DEVNULL
        )

    @property
    def _filler(self) -> Path:
        return self._directory / "filler"

    def fill(self, free_pages: int = 0) -> None:
        """Leave only so many pages free."""
        with self._filler.open("ab") as file:
            for step in (1 << 20, _PAGE_BYTES):
                with contextlib.suppress(OSError):
                    while True:
                        end = file.seek(0, os.SEEK_END)
                        os.posix_fallocate(file.fileno(), end, step)
            file.truncate(max(0, file.seek(0, os.SEEK_END) - free_pages * _PAGE_BYTES))

    def free(self) -> None:
        """Have space again."""
        try:
            self._filler.unlink()
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def close(self) -> None:
        """Unmount it; the files are lost."""
        if self.can_be_full:
            subprocess.call(["umount", "--lazy", str(self._directory)])
