"""The interface of a checkpoint storage.

A storage handles UUIDs and files, not models or masters. In every kind of storage, a checkpoint exists
completely or not at all: `store_path` commits at the end of its block. When the block raises, nothing remains.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

__all__ = ["Storage"]


class Storage(abc.ABC):
    """Stores the files of checkpoints by checkpoint UUID."""

    @abc.abstractmethod
    def store_path(self, uuid: str, hashes: Mapping[str, str] | None = None) -> AbstractContextManager[Path]:
        """Yield an empty directory that becomes checkpoint `uuid` when the block ends without an error.

        The files are flushed, the manifest is written last, and the checkpoint appears in one step. If the block
        or the writing raises, nothing remains.

        Args:
            uuid: UUID of the checkpoint.
            hashes: SHA-256 in hexadecimal, by relative path, of files that were hashed as they were written. The
                mapping is read when the block ends; the other files are read again to hash them.

        Raises:
            OSError: the storage cannot be written (disk full, no permission, not mounted).
        """

    @abc.abstractmethod
    def restore_path(self, uuid: str) -> AbstractContextManager[Path]:
        """Yield a directory with the verified files of checkpoint `uuid`; do not write to it.

        Raises:
            CheckpointMissingError: there is no such checkpoint.
            CheckpointError: it does not match its manifest.
        """

    @abc.abstractmethod
    def exists(self, uuid: str) -> bool:
        """Return whether a finished checkpoint `uuid` is stored."""

    @abc.abstractmethod
    def list_files(self, uuid: str) -> dict[str, int]:
        """Return the relative paths of `uuid` with sizes in bytes; directories end with ``/``; {} if there is none."""

    @abc.abstractmethod
    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        """Delete the files of `uuid` that match any of `globs` and return the remaining files.

        If nothing remains, or there is no such checkpoint, the result is {} and no error.
        """

    @abc.abstractmethod
    def store_file(self, name: str, source: Path) -> None:
        """Store a copy of a file beside the checkpoints; a file of the same name is replaced in one step.

        Args:
            name: relative path with ``/``.
            source: the file to copy.

        Raises:
            OSError: the storage cannot be written.
        """

    @abc.abstractmethod
    def files_path(self, prefix: str) -> Path:
        """Return the directory of the files stored below `prefix`; it may not exist yet. Do not write to it."""

    @contextmanager
    def raw_path(self, uuid: str) -> Iterator[Path]:
        """Yield the directory of `uuid` without verifying it, for downloads of partial checkpoints.

        Raises:
            CheckpointMissingError: there is no such checkpoint.
        """
        with self.restore_path(uuid) as path:
            yield path
