"""The plan of a checkpoint's files, which another process can execute.

A file is a sequence of pieces: known bytes, and slices of the memory with the copied variables. Writing a plan needs
neither a framework nor knowledge about the meaning of the slices.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import IO, cast

from det_keras.storage import Storage
from det_keras.storage.base import FileStream

# For smaller checkpoints, starting threads takes longer than it saves.
_LARGE_BYTES = 32 << 20


@dataclass(frozen=True)
class Slice:
    """A part of the memory.

    Attributes:
        offset: its beginning, in bytes.
        size: its length, in bytes.
    """

    offset: int
    size: int


Piece = bytes | Slice


@dataclass(frozen=True)
class FilePlan:
    """The files of a checkpoint.

    Attributes:
        files: relative path -> pieces, in order.
        zips: relative path of an uncompressed zip archive -> its members, as in `files`.
        archives: relative path of a directory -> a gzip-compressed tar archive to unpack there.
    """

    files: Mapping[str, Sequence[Piece]]
    zips: Mapping[str, Mapping[str, Sequence[Piece]]] = field(default_factory=dict)
    archives: Mapping[str, bytes] = field(default_factory=dict)


def store_files(storage: Storage, uuid: str, plan: FilePlan, memory: memoryview) -> None:
    """Store the files of `plan` as checkpoint `uuid`.

    Args:
        storage: stores the checkpoint.
        uuid: UUID of the checkpoint.
        plan: the files.
        memory: the memory of the slices.

    Raises:
        OSError: the storage cannot be written; nothing of the checkpoint remains.
    """
    with storage.store_streams(uuid) as target:

        def write_file(name: str, pieces: Sequence[Piece]) -> None:
            with target.open(name) as file:
                _write_pieces(file, pieces, memory)

        def write_zip(name: str, members: Mapping[str, Sequence[Piece]]) -> None:
            with target.open(name) as file:
                _write_zip(file, members, memory)

        files = [
            *(partial(write_zip, *item) for item in plan.zips.items()),
            *(partial(write_file, *item) for item in plan.files.items()),
        ]
        _run(files, target.most_open_files if memory.nbytes >= _LARGE_BYTES else 1)
        for name, content in plan.archives.items():
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
                target.unpack(tar, name)


def _run(actions: Sequence[Callable[[], None]], most_at_once: int) -> None:
    """Run actions, several at once if more than one may be; raise the error of the first that fails."""
    if most_at_once == 1:
        for action in actions:
            action()
        return
    with ThreadPoolExecutor(most_at_once, thread_name_prefix="det-files") as pool:
        for running in [pool.submit(action) for action in actions]:
            running.result()


def _write_zip(file: FileStream, members: Mapping[str, Sequence[Piece]], memory: memoryview) -> None:
    # The file cannot seek, so sizes are written after each member and in the directory at the end.
    with zipfile.ZipFile(cast("IO[bytes]", file), "w", zipfile.ZIP_STORED) as archive:
        for member, pieces in members.items():
            is_large = _size(pieces) > 1 << 30
            with archive.open(zipfile.ZipInfo(member), "w", force_zip64=is_large) as target:
                _write_pieces(target, pieces, memory)


def _write_pieces(file: FileStream | IO[bytes], pieces: Sequence[Piece], memory: memoryview) -> None:
    for piece in pieces:
        if isinstance(piece, Slice):
            file.write(memory[piece.offset : piece.offset + piece.size])
        else:
            file.write(piece)


def _size(pieces: Sequence[Piece]) -> int:
    return sum(piece.size if isinstance(piece, Slice) else len(piece) for piece in pieces)
