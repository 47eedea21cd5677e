"""Bundles: the files that clients send with an experiment or a job, stored by the hash of their content.

Clients send a list of tar-like entries. An entry that could write outside of the directory it is unpacked
into is refused before anything is stored.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import posixpath
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from det_keras.files import write_file
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.wire import Message

_MODE_BITS = 0o7777
# Limits of file systems, in bytes; the path leaves space for the directory that bundles are unpacked into.
_LONGEST_NAME = 255
_LONGEST_PATH = 3500
# The end of the year 9999.
_LAST_SECOND = 253_402_300_799
#: The types of entries that have a content.
REGULAR = (ord("0"), 0)
_KINDS = {
    **dict.fromkeys(REGULAR, tarfile.REGTYPE),
    ord("5"): tarfile.DIRTYPE,
    ord("2"): tarfile.SYMTYPE,
}


class FileEntry(Message):
    """One file, directory or link as clients send it."""

    path: str = ""
    type: int = ord("0")
    # That of the body is the limit.
    content: str = Field(default="", max_length=128 << 20)
    mtime: int = 0
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


#: Files as clients send them. Each of them costs an object, and an entry of an archive that each task extracts.
FileEntries = Annotated[list[FileEntry], Field(default_factory=list, max_length=50_000)]


class ContextStore:
    """Bundles as compressed archives in a directory.

    Args:
        root: the directory; created when the first bundle is stored.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> Path:
        """The directory."""
        return self._root

    def path(self, digest: str) -> Path:
        """Return the archive file of a stored bundle."""
        return self._root / f"{digest}.tar.gz"

    def add(self, entries: Sequence[FileEntry]) -> tuple[str | None, int]:
        """Store a bundle; return its digest (None without files) and the size of its files in bytes.

        Raises:
            InvalidArgumentError: an entry points outside of the bundle, or is malformed; nothing is stored.
        """
        if not entries:
            return None, 0
        members = [_member(entry) for entry in entries]
        _refuse_detours([member for member, _ in members])
        _refuse_clashes([member for member, _ in members])
        archive = _archive(members)
        digest = hashlib.sha256(archive).hexdigest()
        self._write(self.path(digest), archive)
        return digest, sum(member.size for member, _ in members)

    def add_missing(self, digest: str | None, entries: Sequence[FileEntry]) -> None:
        """Store a bundle again if it was removed since it was added."""
        if digest is not None and not self.path(digest).exists():
            self.add(entries)

    def encoded(self, digest: str | None) -> str:
        """Return a bundle for a response: a compressed tar in base64; empty without files."""
        return "" if digest is None else base64.b64encode(self.path(digest).read_bytes()).decode()

    def remove(self, digest: str) -> None:
        """Delete a bundle to which nothing refers any more."""
        self.path(digest).unlink(missing_ok=True)

    def _write(self, path: Path, content: bytes) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists():
            return
        # Two requests that store the same files write the same bytes, so the order of their renames is irrelevant.
        write_file(path, content, mode=0o600, is_durable=True)


def _archive(members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    # No time in the header, so that the same files have the same digest.
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=3) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as files,
    ):
        for member, content in members:
            files.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _refuse_detours(members: Sequence[tarfile.TarInfo]) -> None:
    """Refuse entries whose path or target leads through a symbolic link of the same bundle."""
    links = {member.name for member in members if member.issym()}
    for member in members:
        route = member.name
        if member.issym():
            route = posixpath.join(posixpath.dirname(member.name), member.linkname, "end")
        parts = route.split("/")
        through = next((link for i in range(1, len(parts)) if (link := "/".join(parts[:i])) in links), None)
        twice = not member.issym() and member.name in links
        if through is not None or twice:
            raise InvalidArgumentError(
                f"{member.name!r} in the files leads through the link {through or route!r}."
            )


def _refuse_clashes(members: Sequence[tarfile.TarInfo]) -> None:
    """Refuse a file whose path another entry needs as a directory."""
    files = {member.name for member in members if not member.isdir()}
    for member in members:
        parts = member.name.split("/")
        # A directory needs its own name as well as those above it.
        ends = range(1, len(parts) + member.isdir())
        above = next((name for end in ends if (name := "/".join(parts[:end])) in files), None)
        if above is not None:
            raise InvalidArgumentError(f"{above!r} in the files is both a file and a directory.")


def _member(entry: FileEntry) -> tuple[tarfile.TarInfo, bytes]:
    kind = _KINDS.get(entry.type)
    if kind is None:
        raise InvalidArgumentError(f"{entry.path!r} in the files has the unsupported type {entry.type}.")
    try:
        content = base64.b64decode(entry.content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgumentError(f"The content of {entry.path!r} in the files is not base64.") from None
    member = tarfile.TarInfo(_inner_path(entry.path))
    member.type = kind
    if abs(entry.mtime) > _LAST_SECOND:
        raise InvalidArgumentError(
            f"The `mtime` of {entry.path!r} in the files is not a time: {entry.mtime}."
        )
    member.mtime = entry.mtime
    member.mode = entry.mode & _MODE_BITS
    if kind == tarfile.SYMTYPE:
        member.linkname = _link_target(member.name, content.decode(errors="replace"))
        return member, b""
    if kind == tarfile.REGTYPE:
        member.size = len(content)
        return member, content
    return member, b""


def _inner_path(path: str) -> str:
    """Return `path` normalised; refuse it if it is not strictly inside of the directory."""
    clean = posixpath.normpath(path) if path else ""
    if clean in ("", ".") or "\0" in path or path.startswith("/") or clean.split("/")[0] == "..":
        raise InvalidArgumentError(f"{path!r} in the files is not a path inside of the directory.")
    longest = max(len(part.encode()) for part in clean.split("/"))
    if longest > _LONGEST_NAME or len(clean.encode()) > _LONGEST_PATH:
        raise InvalidArgumentError(
            f"The name {path[:60]!r}... in the files is too long: {longest} bytes between two slashes (limit "
            f"{_LONGEST_NAME}), {len(clean.encode())} in all (limit {_LONGEST_PATH})."
        )
    return clean


def _link_target(path: str, target: str) -> str:
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if not target or target.startswith("/") or whole.split("/")[0] == "..":
        raise InvalidArgumentError(f"The link {path!r} in the files points outside, to {target!r}.")
    return target
