"""Unpacks tar archives so that no entry leaves the directory, on every Python version.

Source: PEP 706, whose filters are in Python 3.12 and in late releases of 3.10 and 3.11 only; Debian 12 has none.
"""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

__all__ = ["unpack"]


def unpack(archive: tarfile.TarFile, directory: Path) -> None:
    """Unpack `archive` into `directory`.

    Raises:
        tarfile.TarError: an entry is neither file, directory nor link, or leads out of the directory.
        OSError: the disk is full or failing.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(directory, filter="data")
        return
    for member in archive.getmembers():
        kept = member.isfile() or member.isdir() or member.issym() or member.islnk()
        if not kept or not _stays_inside(member):
            raise tarfile.ExtractError(f"The archive's entry {member.name!r} leads out of the directory.")
    archive.extractall(directory)


def _stays_inside(member: tarfile.TarInfo) -> bool:
    paths = [PurePosixPath(member.name)]
    if member.issym() or member.islnk():
        paths.append(PurePosixPath(member.linkname))
    return not any(path.is_absolute() or ".." in path.parts for path in paths)
