"""The files that a training writes: with a checkpoint they are kept, and a resumed script finds them as they were.

A script may read such a file after the training, such as the best weights of a fold, and a later training may have
written the same file since. An audit hook sees what Python code opens to write; what Keras writes through HDF5 is
noticed where a model is saved.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_keras.files import write_file
from det_keras.keras.private_api.models import calling_frames, noticed_saves
from det_keras.keras.training.parts import Part, Saved

logger = logging.getLogger(__name__)

# Of all files together that a checkpoint keeps.
_LARGEST_BYTES = 64 << 20
_FOLDER = "files"
_STDLIB, _PRODUCT = sysconfig.get_path("stdlib"), str(Path(__file__).parents[2])
_SITE = sysconfig.get_path("purelib")


@dataclass(frozen=True)
class _Content:
    """The content of a file at some moment.

    Attributes:
        stamp: size and time of modification, in nanoseconds.
        digest: SHA-256 of the content; the stamp of a file that is too large to keep.
        content: the bytes; None for a file that is too large.
    """

    stamp: tuple[int, int]
    digest: str
    content: bytes | None


class WrittenFiles(Part):
    """The files that the script's code, its callbacks and Keras have written in a training.

    Args:
        is_active: whether this worker's files are kept; only the chief writes shared ones.
    """

    def __init__(self, *, is_active: bool) -> None:
        self._is_active = is_active
        self._paths: dict[Path, _Content | None] = {}
        self._captured: Mapping[str, Any] = {}
        self._left: dict[str, str] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notice the files that are written inside the block."""
        if not self._is_active:
            yield
            return
        with _watched(self._note), noticed_saves(self._note):
            yield

    @property
    def has_changed(self) -> bool:
        """Whether a file has changed since the newest checkpoint."""
        return self._listed() != self._captured

    def capture(self, directory: Path) -> Mapping[str, Any]:
        self._captured = self._listed()
        # A script may have wrapped `open`: what is written here is then noticed as well.
        for content in list(self._paths.values()):
            if content is not None and content.content is not None:
                (directory / _FOLDER).mkdir(exist_ok=True)
                (directory / _FOLDER / content.digest).write_bytes(content.content)
        return {"files": self._captured} if self._captured else {}

    def leave(self) -> None:
        """Keep the files as they are now: what the script writes from here on is not of the training."""
        self._left = self._listed()

    def rewrite(self, saved: Saved) -> None:
        """Give the files the content that they have in a checkpoint; called before callbacks open them."""
        if not self._is_active:
            return
        for name, digest in saved.state.get("files", {}).items():
            path = Path(name).absolute()
            found = _read(path, None, _LARGEST_BYTES)
            self._paths[path] = found
            if found is not None and digest in (found.digest, _stamp_digest(found.stamp)):
                continue
            stored = saved.own_file(_FOLDER) / digest
            if not stored.exists():
                logger.warning(
                    "The training wrote `%s`, which is too large for checkpoints: it may have the content of a "
                    "later moment now. Let each training write a file of its own.",
                    name,
                )
                continue
            if not Path(name).is_absolute():
                path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent.is_dir():
                write_file(path, stored.read_bytes())
                self._paths[path] = _read(path, None, _LARGEST_BYTES)

    def _note(self, path: Any) -> None:
        try:
            self._paths.setdefault(Path(os.fsdecode(path)).absolute(), None)
        except (TypeError, ValueError):
            # A file descriptor, or a name that no file can have.
            return

    def _listed(self) -> dict[str, str]:
        """Return the digest of each file that exists, by its name relative to the script's directory.

        The files that were written last are kept; a `fit` may write one for each epoch.
        """
        if self._left is not None:
            return self._left
        stamps = {path: stamp for path in self._paths if (stamp := _stamp(path)) is not None}
        listed: dict[str, str] = {}
        left, here = _LARGEST_BYTES, Path.cwd()
        for path in sorted(stamps, key=lambda path: stamps[path][1], reverse=True):
            content = _read(path, self._paths[path], left)
            self._paths[path] = content
            if content is not None:
                left -= 0 if content.content is None else len(content.content)
                listed[str(path.relative_to(here) if path.is_relative_to(here) else path)] = content.digest
        return listed


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return size and time of modification of a file; None if it is none."""
    try:
        found = path.stat()
        return (found.st_size, found.st_mtime_ns) if path.is_file() else None
    except OSError:
        return None


def _read(path: Path, known: _Content | None, most_bytes: int) -> _Content | None:
    """Return the content of a file, None if it is no file.

    Args:
        path: the file.
        known: its content before, which is returned if it has not changed since.
        most_bytes: of a larger file only the stamp is returned.
    """
    stamp = _stamp(path)
    if stamp is None:
        return None
    if stamp[0] > most_bytes:
        return _Content(stamp, _stamp_digest(stamp), None)
    if known is not None and known.stamp == stamp and known.content is not None:
        return known
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return _Content(stamp, hashlib.sha256(content).hexdigest(), content)


def _stamp_digest(stamp: tuple[int, int]) -> str:
    return f"{stamp[0]}-{stamp[1]}"


_watchers: list[Any] = []
_hook_lock = threading.Lock()
_is_hooked = False


@contextmanager
def _watched(notice: Any) -> Iterator[None]:
    """Call `notice` inside the block with each path that code of this thread, except this package's, opens to write."""
    global _is_hooked
    with _hook_lock:
        if not _is_hooked:
            # A hook cannot be removed: without watchers it does nothing.
            sys.addaudithook(_on_event)
            _is_hooked = True
    watcher = (threading.get_ident(), notice)
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _watchers:
        return
    path, mode, flags = arguments
    writes = set(mode) & set("wax+") if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR)
    if not writes or isinstance(path, int):
        return
    for thread, notice in _watchers:
        if thread == threading.get_ident() and not _is_own_write():
            notice(path)


def _is_own_write() -> bool:
    """Return whether this package opens the file, through the standard library or not."""
    for frame in calling_frames():
        file = frame.f_code.co_filename
        is_library = file.startswith((_STDLIB, "<frozen")) and not file.startswith(_SITE)
        if file != __file__ and not is_library:
            return file.startswith(_PRODUCT)
    return False
