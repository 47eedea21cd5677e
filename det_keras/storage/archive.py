"""Unpacks tar archives so that no entry leaves the directory, on every Python version.

Source: PEP 706, whose filters are in Python 3.12 and in late releases of 3.10 and 3.11 only; Debian 12 has none.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath


def unpack(archive: tarfile.TarFile, directory: Path, *, is_private: bool = False) -> None:
    """Unpack `archive` into `directory`.

    Args:
        archive: the archive.
        directory: created if it does not exist.
        is_private: make the files readable by their owner only, and the directory if it is created.

    Raises:
        tarfile.TarError: an entry is neither file, directory nor link, or leads out of the directory.
        OSError: the disk is full or failing.
    """
    members = _checked(archive)
    if is_private:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        members = _made_private(members)
    if hasattr(tarfile, "data_filter"):
        archive.extractall(directory, members, filter="data")
    else:
        archive.extractall(directory, members)


def unpack_chunks(chunks: Iterator[bytes], directory: Path) -> None:
    """Unpack an archive while it arrives: it may be larger than the memory, and is not kept on the disk.

    Args:
        chunks: bytes of the archive, plain or compressed; what the iterator raises is raised here.
        directory: exists.

    Raises:
        tarfile.TarError: as in `unpack`, or the archive is broken.
        EOFError: the archive ends too early.
        OSError: the disk is full or failing.
    """
    with tarfile.open(fileobj=_Chunks(chunks), mode="r|*") as archive:
        unpack(archive, directory)


def _made_private(members: Iterable[tarfile.TarInfo]) -> Iterator[tarfile.TarInfo]:
    for member in members:
        is_executable = member.isdir() or member.mode & 0o100
        member.mode = 0o700 if is_executable else 0o600
        yield member


def _checked(archive: tarfile.TarFile) -> Iterable[tarfile.TarInfo]:
    for member in archive:
        kept = member.isfile() or member.isdir() or member.issym() or member.islnk()
        if not kept or not _stays_inside(member):
            raise tarfile.ExtractError(
                f"its entry {member.name!r} is not a file below the directory, and is refused"
            )
        yield member


def _stays_inside(member: tarfile.TarInfo) -> bool:
    paths = [PurePosixPath(member.name)]
    if member.issym() or member.islnk():
        paths.append(PurePosixPath(member.linkname))
    return not any(path.is_absolute() or ".." in path.parts for path in paths)


class _Chunks(io.RawIOBase):
    """Reads an iterator of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, b"" at the end."""
        if size < 0:
            return self._rest + b"".join(self._chunks)
        while not self._rest:
            self._rest = next(self._chunks, None) or b""
            if not self._rest:
                return b""
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken
