"""Stores media in the background, so that training does not wait for it.

One thread encodes, stores and reports the items, in order. The memory of waiting items is limited: if the storage is
slower than the script, a call waits for room, and if there is none for some seconds, the item is dropped. An item stays
at the head of the queue while it is stored, so an empty queue means that everything is stored or was dropped.

A failing storage is reported once and never fails the training. Items that were logged before a checkpoint are stored
before the checkpoint is (`flush`): a process that resumes from it logs the later ones again, which replaces them.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from det_keras.core.backend.base import Backend, MediaFolder, MediaRecord
from det_keras.core.media.content import Content
from det_keras.display import size_text
from det_keras.errors import MasterError
from det_keras.protocol.media import MOST_ITEM_BYTES, MOST_ITEMS, MOST_TRIAL_BYTES, file_name
from det_keras.storage import Storage

logger = logging.getLogger(__name__)

_MOST_WAITING_BYTES = 64 << 20
_MOST_WAITING = 1000
_FLUSH_S = 120.0


@dataclass(frozen=True)
class _Item:
    name: str
    step: int
    content: Content

    @property
    def key(self) -> tuple[str, str, int]:
        return self.content.kind, self.name, self.step

    def __str__(self) -> str:
        return f"{self.content.kind} {self.name!r} of step {self.step}"


class MediaStore:
    """Stores media and reports them; used on the chief only.

    Args:
        storage: stores the files, unless the backend has a storage of its own.
        backend: the destination of reports.
        most_waiting_bytes: memory that waiting items may use.
        patience_s: how long a call waits for room, in seconds.
    """

    def __init__(
        self,
        storage: Storage,
        backend: Backend,
        *,
        most_waiting_bytes: int = _MOST_WAITING_BYTES,
        patience_s: float = 10.0,
    ) -> None:
        self._storage = storage
        self._backend = backend
        self._most_waiting_bytes = most_waiting_bytes
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._waiting_bytes = 0
        self._is_stuck = False
        self._closing = False
        self._thread: threading.Thread | None = None
        # Used by the thread only, except the warnings.
        self._folder: MediaFolder | None = None
        self._is_unavailable = False
        self._sizes: dict[tuple[str, str, int], int] = {}
        self._total_bytes = 0
        self._warned: set[str] = set()

    def put(self, name: str, step: int, content: Content) -> None:
        """Store an item in the background; one of the same kind, name and step is replaced.

        Args:
            name: its name.
            step: its step.
            content: its content; an item that is too large is dropped with a warning.
        """
        item = _Item(name, step, content)
        with self._changed:
            if self._closing:
                return
            if not self._has_room(item) and not self._is_stuck:
                self._changed.wait_for(lambda: self._has_room(item), self._patience_s)
            if not self._has_room(item):
                # No further call waits until an item is stored.
                self._is_stuck = True
                self._warn_once(
                    "stuck",
                    "The storage is slower than the media that are logged: %s and those after it are dropped until "
                    "there is room.",
                    item,
                )
                return
            self._waiting.append(item)
            self._waiting_bytes += content.memory_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="det-media", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = _FLUSH_S) -> None:
        """Wait until every item is stored or was dropped; give up after `timeout_s` seconds with a warning."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            # The thread may have ended with a process that was forked.
            while self._waiting and self._thread is not None and self._thread.is_alive():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    self._warn_once("flush", "%d media are not stored yet.", len(self._waiting))
                    return
                self._changed.wait(min(left_s, 1.0))

    def close(self) -> None:
        """Flush and end the thread; later items are ignored."""
        self.flush()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _has_room(self, item: _Item) -> bool:
        is_within = self._waiting_bytes + item.content.memory_bytes <= self._most_waiting_bytes
        return not self._waiting or (is_within and len(self._waiting) < _MOST_WAITING)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                item = self._waiting[0]
            try:
                is_stored = self._store(item)
            except Exception as error:
                # The edge of the thread: an item that fails must not end it.
                is_stored = False
                is_expected = isinstance(error, OSError)
                self._warn_once(
                    "failed",
                    "%s could not be stored, and later failures are not reported. Training continues. %s",
                    item,
                    error if is_expected else repr(error),
                )
                logger.debug("%s could not be stored.", item, exc_info=True)
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= item.content.memory_bytes
                self._is_stuck = self._is_stuck and not is_stored
                self._changed.notify_all()

    def _store(self, item: _Item) -> bool:
        folder = self._open()
        if folder is None:
            return False
        content = item.content.encode()
        if len(content) > MOST_ITEM_BYTES:
            logger.warning(
                "%s has %s, more than the %s that an item may have. It is dropped.",
                item,
                size_text(len(content)),
                size_text(MOST_ITEM_BYTES),
            )
            return False
        total_bytes = self._total_bytes - self._sizes.get(item.key, 0) + len(content)
        if total_bytes > MOST_TRIAL_BYTES or (item.key not in self._sizes and len(self._sizes) >= MOST_ITEMS):
            self._warn_once(
                "full",
                "This run has %s media of %s, and it may have %s of %s: %s and all that exceed this are dropped.",
                f"{len(self._sizes):,}",
                size_text(self._total_bytes),
                f"{MOST_ITEMS:,}",
                size_text(MOST_TRIAL_BYTES),
                item,
            )
            return False
        kind, name, step = item.key
        file = file_name(kind, name, step, item.content.extension)
        with tempfile.NamedTemporaryFile(prefix="det-media-") as draft:
            draft.write(content)
            draft.flush()
            (folder.storage or self._storage).store_file(f"{folder.prefix}/{file}", Path(draft.name))
        self._backend.report_media(MediaRecord(kind, name, step, len(content), file, item.content.caption))
        self._sizes[item.key] = len(content)
        self._total_bytes = total_bytes
        return True

    def _open(self) -> MediaFolder | None:
        """Return the folder, which is asked for once; None if the master stores no media."""
        if self._folder is None and not self._is_unavailable:
            try:
                self._folder = self._backend.open_media()
            except MasterError as error:
                # A Determined master has no media.
                self._is_unavailable = True
                self._warn_once("unavailable", "The master stores no media, and all are dropped. %s", error)
                return None
            self._sizes = {(item.kind, item.name, item.step): item.size for item in self._folder.records}
            self._total_bytes = sum(self._sizes.values())
        return self._folder

    def _warn_once(self, topic: str, text: str, *values: object) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            logger.warning(text, *values)
