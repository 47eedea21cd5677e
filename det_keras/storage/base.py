"""The interface of a checkpoint storage.

A storage handles UUIDs and files, not models or masters. In every kind of storage, a checkpoint exists
completely or not at all: `store_path` commits at the end of its block. When the block raises, nothing remains.
"""

from __future__ import annotations

import abc
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from det_keras.storage.archive import unpack
from det_keras.storage.streamed_file import StreamedFile


class FileStream(Protocol):
    """A new file of a checkpoint, written sequentially; as a context manager it completes the file at its end."""

    @property
    def sha256(self) -> str:
        """The hexadecimal hash of the content; complete after the end of the block."""

    def write(self, content: bytes | memoryview, /) -> int:
        """Append `content` and return its size in bytes."""

    def flush(self) -> None:
        """Do nothing: writers of archives call it between members."""

    def __enter__(self) -> FileStream: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object, /) -> None: ...


class CheckpointTarget(abc.ABC):
    """The files of a checkpoint that is being written.

    Attributes:
        most_open_files: how many files may be open at once, each on a thread of its own.
    """

    most_open_files = 1

    @abc.abstractmethod
    def open(self, name: str) -> FileStream:
        """Return a new file; if as many as may be are open, one of them must be complete.

        Args:
            name: relative path with ``/``.

        Raises:
            OSError: the storage cannot be written.
        """

    @abc.abstractmethod
    def unpack(self, tar: tarfile.TarFile, name: str) -> None:
        """Add the files of an archive to the directory `name` of the checkpoint.

        Raises:
            OSError: the storage cannot be written.
        """


class DirectoryTarget(CheckpointTarget):
    """A checkpoint that is written to a directory.

    Args:
        directory: an existing directory.
        hashes: receives the SHA-256 of each file that was written by `open`.
    """

    # SHA-256 of large files takes longer than a disk takes to write them.
    most_open_files = 2

    def __init__(self, directory: Path, hashes: dict[str, str]) -> None:
        self._directory = directory
        self._hashes = hashes

    def open(self, name: str) -> FileStream:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return _HashedFile(path, name, self._hashes)

    def unpack(self, tar: tarfile.TarFile, name: str) -> None:
        # The code of an experiment, which only its account may read where it is submitted too.
        unpack(tar, self._directory / name, is_private=True)


class _HashedFile(StreamedFile):
    """A file that enters its hash into a mapping once it is complete."""

    def __init__(self, path: Path, name: str, hashes: dict[str, str]) -> None:
        super().__init__(path)
        self._name = name
        self._hashes = hashes

    def close(self) -> None:
        super().close()
        self._hashes[self._name] = self.sha256


@dataclass(frozen=True)
class Orphan:
    """What an unfinished checkpoint or deletion left in a storage.

    Attributes:
        name: its place in the storage, for messages.
        uuid: UUID of the checkpoint.
        size_bytes: size of its files, as far as the storage tells.
        age_s: time since its last change, in seconds.
    """

    name: str
    uuid: str
    size_bytes: int
    age_s: float


class Storage(abc.ABC):
    """Stores the files of checkpoints by checkpoint UUID."""

    @abc.abstractmethod
    def store_path(self, uuid: str, hashes: Mapping[str, str] | None = None) -> AbstractContextManager[Path]:
        """Yield an empty directory that becomes checkpoint `uuid` when the block ends without an error.

        The files are flushed, the manifest is written last, and the checkpoint appears in one step. If the block
        or the writing raises, nothing remains.

        Args:
            uuid: UUID of the checkpoint.
            hashes: SHA-256 in hexadecimal, by relative path, of files that were hashed as they were written, and
                flushed. The mapping is read when the block ends; the other files are read again to hash them.

        Raises:
            OSError: the storage cannot be written (disk full, no permission, not mounted).
        """

    @contextmanager
    def store_streams(self, uuid: str) -> Iterator[CheckpointTarget]:
        """Yield a target for files that become checkpoint `uuid` when the block ends without an error.

        It differs from `store_path` in that the content need not be in files: a storage of objects sends it from
        memory.

        Args:
            uuid: UUID of the checkpoint.

        Raises:
            OSError: the storage cannot be written; nothing of the checkpoint remains.
        """
        hashes: dict[str, str] = {}
        with self.store_path(uuid, hashes) as directory:
            yield DirectoryTarget(directory, hashes)

    @abc.abstractmethod
    def restore_path(self, uuid: str) -> AbstractContextManager[Path]:
        """Yield a directory with the verified files of checkpoint `uuid`; do not write to it.

        Raises:
            CheckpointMissingError: there is no such checkpoint.
            CheckpointError: it does not match its manifest.
            OSError: the storage cannot be read.
        """

    @abc.abstractmethod
    def exists(self, uuid: str) -> bool:
        """Return whether a finished checkpoint `uuid` is stored."""

    @abc.abstractmethod
    def checkpoints(self) -> list[str]:
        """Return the UUIDs of all finished checkpoints that are stored, whoever stored them.

        Raises:
            OSError: the storage cannot be read.
        """

    @abc.abstractmethod
    def list_files(self, uuid: str) -> dict[str, int]:
        """Return the relative paths of `uuid` with sizes in bytes; directories end with ``/``; {} if there is none."""

    @abc.abstractmethod
    def location(self, uuid: str) -> str:
        """Return the place of checkpoint `uuid`, such as ``/data/checkpoints/<uuid>`` or ``s3://bucket/<uuid>``."""

    @abc.abstractmethod
    def manifest(self, uuid: str) -> bytes:
        """Return the content of the manifest of checkpoint `uuid`, without its other files.

        Raises:
            CheckpointError: there is no such checkpoint, or it was never completed.
            OSError: the storage cannot be read.
        """

    @abc.abstractmethod
    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        """Delete the files of `uuid` that match any of `globs` and return the remaining files.

        If nothing remains, or there is no such checkpoint, the result is {} and no error.
        """

    @abc.abstractmethod
    def find_orphans(self, min_age_s: float) -> list[Orphan]:
        """Return what unfinished checkpoints and deletions left.

        Args:
            min_age_s: time without a change, in seconds, after which an unfinished checkpoint of another machine
                counts as abandoned. A process of this machine is known to be dead without it.
        """

    @abc.abstractmethod
    def remove_orphan(self, orphan: Orphan) -> None:
        """Remove what `find_orphans` returned; a second call has no effect.

        Raises:
            OSError: the storage cannot be written.
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
    def read_file(self, name: str) -> bytes:
        """Return the content of a file that `store_file` stored.

        Args:
            name: relative path with ``/``.

        Raises:
            OSError: there is no such file, or the storage cannot be read.
        """

    @abc.abstractmethod
    def mirror_files(self, prefix: str, target: Path) -> bool:
        """Make the files that are stored below `prefix` readable in a local directory.

        A repeated call adds what was stored since.

        Args:
            prefix: relative path with ``/``.
            target: the directory: a link to the files if they are in a file system of this machine, else a copy.

        Returns:
            Whether any file is stored below `prefix`.

        Raises:
            OSError: the storage cannot be read.
        """

    @abc.abstractmethod
    def delete_files(self, prefix: str) -> None:
        """Delete the files that `store_file` stored below `prefix`.

        Raises:
            OSError: the storage cannot be written.
        """

    @contextmanager
    def raw_path(self, uuid: str) -> Iterator[Path]:
        """Yield the directory of `uuid` without verifying it, for downloads of partial checkpoints.

        Raises:
            CheckpointMissingError: there is no such checkpoint.
        """
        with self.restore_path(uuid) as path:
            yield path
