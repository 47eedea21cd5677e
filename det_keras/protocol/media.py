"""Media of a trial, such as images and tables: their kinds, their limits, and the names of their files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

#: Kind -> extensions of its files.
EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    "image": ("png", "jpg", "gif", "webp"),
    "figure": ("png", "json"),
    "table": ("json",),
    "histogram": ("json",),
    "confusion_matrix": ("json",),
    "text": ("txt",),
    "file": ("bin",),
}
#: Extension -> the media type with which a file is served. None of them is a type that a browser executes.
MEDIA_TYPES: Mapping[str, str] = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
    "bin": "application/octet-stream",
}
MOST_ITEM_BYTES = 10 << 20
MOST_TRIAL_BYTES = 1 << 30
MOST_ITEMS = 10_000
LONGEST_NAME = 500
LONGEST_CAPTION = 2000

_SLUG_LENGTH = 40
_FILE = re.compile(r"[A-Za-z0-9_-]{0,41}[0-9a-f]{20}-[0-9]{1,19}\.([a-z]{3,4})", re.ASCII)


def file_name(kind: str, name: str, step: int, extension: str) -> str:
    """Return the name of an item's file.

    It depends on nothing but the arguments, so an item that is logged again replaces its file. It consists of letters,
    digits and hyphens of ASCII, whatever characters `name` has.
    """
    slug = _slug(name)
    digest = hashlib.sha256(f"{kind}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:20]
    return f"{slug}{'-' if slug else ''}{digest}-{step}.{extension}"


def is_file_of(kind: str, file: str) -> bool:
    """Return whether `file` can be the name of the file of an item of `kind`."""
    found = _FILE.fullmatch(file)
    return found is not None and found[1] in EXTENSIONS.get(kind, ())


def download_name(name: str, step: int, extension: str) -> str:
    """Return the file name that a browser suggests for a download of an item that is not a file itself."""
    return f"{_slug(name) or 'media'}-{step}.{extension}"


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:_SLUG_LENGTH].rstrip("-")
