"""Files that appear complete or not at all: others read them at any time, and the process may be killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, *, mode: int = 0o666, is_durable: bool = False) -> Iterator[BinaryIO]:
    """Provide a new file that replaces `path` at the end of the block; if the block fails, nothing changes.

    Args:
        path: the file; its directory exists.
        mode: its permissions, as far as the umask allows them, from the moment in which it exists.
        is_durable: flush content and name to the disk: after a power loss the file is the old or the new one.

    Raises:
        OSError: the file cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if is_durable:
        fsync_directory(path.parent)


def write_file(path: Path, content: str | bytes, *, mode: int = 0o666, is_durable: bool = False) -> None:
    """Write a whole file, text in UTF-8; arguments and errors as in `replacing`."""
    with replacing(path, mode=mode, is_durable=is_durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def fsync_directory(directory: Path) -> None:
    """Flush the names in `directory` to the disk; a rename is durable only after that."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
