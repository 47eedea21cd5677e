"""What the files of a checkpoint are made of, so that another process can write them.

A file is a sequence of pieces: bytes that are known, and slices of a memory that holds the copied
variables. Writing a plan needs no framework and no knowledge of what the slices mean.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

__all__ = ["FilePlan", "Piece", "Slice", "write_files"]


@dataclass(frozen=True)
class Slice:
    """A part of the memory.

    Attributes:
        offset: where it begins, in bytes.
        size: how long it is, in bytes.
    """

    offset: int
    size: int


Piece = bytes | Slice


@dataclass(frozen=True)
class FilePlan:
    """The files of a checkpoint.

    Attributes:
        files: relative path -> pieces, one after another.
        zips: relative path of an uncompressed zip archive -> its members, as in `files`.
        archives: relative path of a directory -> a gzip-compressed tar archive to unpack there.
    """

    files: Mapping[str, Sequence[Piece]]
    zips: Mapping[str, Mapping[str, Sequence[Piece]]] = field(default_factory=dict)
    archives: Mapping[str, bytes] = field(default_factory=dict)


def write_files(plan: FilePlan, directory: Path, memory: memoryview) -> None:
    """Write the files of `plan` below `directory`.

    Args:
        plan: what to write.
        directory: exists and is empty.
        memory: what the slices are taken from.

    Raises:
        OSError: the disk is full or failing.
    """
    for name, pieces in plan.files.items():
        with _open_new(directory / name) as file:
            _write_pieces(file, pieces, memory)
    for name, members in plan.zips.items():
        with _open_new(directory / name) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for member, pieces in members.items():
                with archive.open(
                    zipfile.ZipInfo(member), "w", force_zip64=_size(pieces) > 1 << 30
                ) as target:
                    _write_pieces(target, pieces, memory)
    for name, content in plan.archives.items():
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
            tar.extractall(directory / name, filter="data")


def _open_new(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


def _write_pieces(file: IO[bytes], pieces: Sequence[Piece], memory: memoryview) -> None:
    for piece in pieces:
        if isinstance(piece, Slice):
            file.write(memory[piece.offset : piece.offset + piece.size])
        else:
            file.write(piece)


def _size(pieces: Sequence[Piece]) -> int:
    return sum(piece.size if isinstance(piece, Slice) else len(piece) for piece in pieces)
