"""The directory that travels with an experiment or a job: everything in it that `.detignore` does not name."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_keras.cli.render import size_text
from det_keras.cli.submission.ignore_rules import IgnoreRules
from det_keras.errors import DetError

__all__ = ["LARGEST_BYTES", "ContextFiles", "bundle"]

#: How much a context directory may hold.
LARGEST_BYTES = 95 * 1024 * 1024

_IGNORE_FILE = ".detignore"
# No script needs these, and they would change the bundle between two equal submissions. Not even `!*/`,
# which lists of what to send begin with, means them.
_NEVER_SENT = frozenset({".git", "__pycache__"})
_BIGGEST_SHOWN = 3
# The ASCII codes of tar's type flags.
_REGULAR_FILE = 48
_DIRECTORY = 53


@dataclass(frozen=True)
class ContextFiles:
    """A directory as it travels.

    Attributes:
        entries: parents before children.
        file_count: how many of them are files.
        size_bytes: what those hold.
        skipped: paths that could not go along: links that lead nowhere, sockets and the like.
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

    Links are followed: what they lead to travels in their place.

    Raises:
        DetError: it is no directory, something in it cannot be read or has a name that is not UTF-8, or it is
            too large.
    """
    if not root.is_dir():
        what = "is not a directory" if root.exists() else "does not exist"
        raise DetError(f"The context directory {str(root)!r} {what}.")
    try:
        found = list(_walk(root, _rules(root)))
        _check_size(root, found)
        entries = tuple(_entry(one) for one in found if one.is_directory or one.is_file)
    except OSError as error:
        raise DetError(
            f"The context directory cannot be read: {error.filename}: {error.strerror}."
        ) from error
    return ContextFiles(
        entries,
        file_count=sum(one.is_file for one in found),
        size_bytes=sum(one.size_bytes for one in found),
        skipped=tuple(one.name for one in found if not one.is_directory and not one.is_file),
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
    # A link to a directory above itself would go round for ever.
    real = os.path.realpath(root)
    if real in parents:
        return
    for path in sorted(root.iterdir()):
        one = _Found(f"{within}{path.name}", path, _status(path))
        if path.name in _NEVER_SENT or rules.is_ignored(one.name, is_directory=one.is_directory):
            continue
        _check_name(one.name)
        yield one
        if one.is_directory:
            yield from _walk(path, rules, f"{one.name}/", (*parents, real))


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise DetError(
            f"The name of '{shown}' in the context directory is not UTF-8, so it cannot travel. Rename it, or have "
            f"a pattern in a {_IGNORE_FILE} file leave it out."
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
    total = sum(one.size_bytes for one in found)
    if total <= LARGEST_BYTES:
        return
    biggest = sorted(found, key=lambda one: one.size_bytes, reverse=True)[:_BIGGEST_SHOWN]
    listed = ", ".join(f"{one.name} ({size_text(one.size_bytes)})" for one in biggest)
    raise DetError(
        f"The context directory {str(root)!r} holds {size_text(total)}, and the limit is "
        f"{size_text(LARGEST_BYTES)}. The biggest files are {listed}. Name what the script does not need "
        f"in a {_IGNORE_FILE} file."
    )


def _entry(one: _Found) -> dict[str, Any]:
    assert one.status is not None
    content = one.path.read_bytes() if one.is_file else b""
    return {
        "path": one.name,
        "type": _REGULAR_FILE if one.is_file else _DIRECTORY,
        "content": base64.b64encode(content).decode(),
        "mtime": str(int(one.status.st_mtime)),
        "mode": one.status.st_mode,
        "uid": 0,
        "gid": 0,
    }
