"""The contract of a checkpoint storage: where checkpoint bytes live.

A storage knows UUIDs and files, nothing of models or masters. Whatever the kind, a checkpoint is there
as a whole or not at all: `store_path` commits at the end of its block and leaves nothing behind when
the block, or the process, dies.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

__all__ = ["Storage"]


class Storage(abc.ABC):
    """Where the files of checkpoints live, by checkpoint UUID."""

    @abc.abstractmethod
    def store_path(self, uuid: str, hashes: Mapping[str, str] | None = None) -> AbstractContextManager[Path]:
        """Yield an empty directory that becomes checkpoint `uuid` when the block ends well.

        The files are flushed, a manifest is written last, and the whole appears at once. If the block
        raises, or writing does, nothing of it remains.

        Args:
            uuid: of the checkpoint.
            hashes: SHA-256 in hexadecimal, by relative path, of files that were hashed as they were written;
                looked at when the block ends. The others are read again for that.

        Raises:
            OSError: the storage cannot be written (disk full, no permission, gone).
        """

    @abc.abstractmethod
    def restore_path(self, uuid: str) -> AbstractContextManager[Path]:
        """Yield a directory with the files of checkpoint `uuid`, verified; do not write to it.

        Raises:
            CheckpointError: there is no such checkpoint, or it does not match its manifest.
        """

    @abc.abstractmethod
    def exists(self, uuid: str) -> bool:
        """Tell whether a finished checkpoint `uuid` is stored."""

    @abc.abstractmethod
    def list_files(self, uuid: str) -> dict[str, int]:
        """Return the relative paths of `uuid` with sizes in bytes; directories end with ``/``; {} if gone."""

    @abc.abstractmethod
    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        """Delete the files of `uuid` that match any of `globs` and return what is left.

        Deleting everything, or what is not there, is no error and leaves {}.
        """

    @abc.abstractmethod
    def store_file(self, name: str, source: Path) -> None:
        """Store a copy of a file beside the checkpoints, in place of one with the same name, in one step.

        Args:
            name: relative path, with ``/``.
            source: the file.

        Raises:
            OSError: the storage cannot be written.
        """

    @abc.abstractmethod
    def files_path(self, prefix: str) -> Path:
        """Return a directory that shows the files stored below `prefix`; it may not exist yet. Do not write to it."""

    @contextmanager
    def raw_path(self, uuid: str) -> Iterator[Path]:
        """Yield the directory of `uuid` without verifying it, for downloads of partial checkpoints.

        Raises:
            CheckpointError: there is no such checkpoint.
        """
        with self.restore_path(uuid) as path:
            yield path
