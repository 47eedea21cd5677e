"""The directory that is sent with an experiment or a job: all files that `.detignore` does not name."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_keras.cli.submission.ignore_rules import IgnoreRules
from det_keras.display import size_text
from det_keras.errors import DetError

#: Limit for the files of a context directory.
LARGEST_BYTES = 95 * 1024 * 1024

_IGNORE_FILE = ".detignore"
# No script needs these, and they would change the bundle between two equal submissions. They are not sent even with the
# pattern `!*/`, with which lists of files to send begin.
_NEVER_SENT = frozenset({".git", "__pycache__"})
_BIGGEST_SHOWN = 3
# The ASCII codes of tar's type flags.
_REGULAR_FILE = 48
_DIRECTORY = 53


@dataclass(frozen=True)
class ContextFiles:
    """The files of a directory, as sent to the master.

    Attributes:
        entries: parents before children.
        file_count: number of files.
        size_bytes: total size of the files.
        skipped: paths that cannot be sent: broken links, sockets and the like.
    """

    entries: tuple[dict[str, Any], ...]
    file_count: int
    size_bytes: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Found:
    name: str
    path: Path
    status: os.stat_result | None

    @property
    def is_directory(self) -> bool:
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return self.status is not None and stat.S_ISREG(self.status.st_mode)

    @property
    def size_bytes(self) -> int:
        return self.status.st_size if self.is_file and self.status is not None else 0


def bundle(root: Path) -> ContextFiles:
    """Read a context directory.

    Links are followed: their targets are sent in their place.

    Raises:
        DetError: it is not a directory, a file cannot be read or has a name that is not UTF-8, or it is
            too large.
    """
    if not root.is_dir():
        what = "is not a directory" if root.exists() else "does not exist"
        raise DetError(f"The context directory {str(root)!r} {what}.")
    try:
        found = list(_walk(root, _rules(root)))
        _check_size(root, found)
        entries = tuple(_entry(item) for item in found if item.is_directory or item.is_file)
    except OSError as error:
        raise DetError(
            f"The context directory cannot be read: {error.filename}: {error.strerror}."
        ) from error
    return ContextFiles(
        entries,
        file_count=sum(item.is_file for item in found),
        size_bytes=sum(item.size_bytes for item in found),
        skipped=tuple(item.name for item in found if not item.is_directory and not item.is_file),
    )


def _rules(root: Path) -> IgnoreRules:
    try:
        text = (root / _IGNORE_FILE).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        text = ""
    return IgnoreRules.parse(text)


def _walk(
    root: Path, rules: IgnoreRules, within: str = "", parents: tuple[str, ...] = ()
) -> Iterator[_Found]:
    # A link to a directory above itself would lead to an endless loop.
    real = os.path.realpath(root)
    if real in parents:
        return
    for path in sorted(root.iterdir()):
        item = _Found(f"{within}{path.name}", path, _status(path))
        if path.name in _NEVER_SENT or rules.is_ignored(item.name, is_directory=item.is_directory):
            continue
        _check_name(item.name)
        yield item
        if item.is_directory:
            yield from _walk(path, rules, f"{item.name}/", (*parents, real))


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise DetError(
            f"The name of '{shown}' in the context directory is not UTF-8, so it cannot be sent. Rename it, or "
            f"exclude it by a pattern in a {_IGNORE_FILE} file."
        ) from None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        if path.is_symlink():
            return None
        raise


def _check_size(root: Path, found: Sequence[_Found]) -> None:
    total = sum(item.size_bytes for item in found)
    if total <= LARGEST_BYTES:
        return
    biggest = sorted(found, key=lambda item: item.size_bytes, reverse=True)[:_BIGGEST_SHOWN]
    listed = ", ".join(f"{item.name} ({size_text(item.size_bytes)})" for item in biggest)
    raise DetError(
        f"The context directory {str(root)!r} has {size_text(total)}, and the limit is "
        f"{size_text(LARGEST_BYTES)}. The biggest files are {listed}. Name files that the script does not need "
        f"in a {_IGNORE_FILE} file."
    )


def _entry(item: _Found) -> dict[str, Any]:
    assert item.status is not None
    content = item.path.read_bytes() if item.is_file else b""
    return {
        "path": item.name,
        "type": _REGULAR_FILE if item.is_file else _DIRECTORY,
        "content": base64.b64encode(content).decode(),
        "mtime": str(int(item.status.st_mtime)),
        "mode": item.status.st_mode,
        "uid": 0,
        "gid": 0,
    }
