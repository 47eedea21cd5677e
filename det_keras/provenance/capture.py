"""Captures a record in the background, and bounds it."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger(__name__)

#: A master accepts no longer record, as JSON.
MOST_RECORD_BYTES = 1 << 20
# A training that ends within a second of its start waits so long for its record.
_CLOSING_TIMEOUT_S = 2.0


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Return whether records are captured: unless ``DET_KERAS_PROVENANCE`` is 0."""
    return environ.get("DET_KERAS_PROVENANCE", "") != "0"


class Capture:
    """Makes a record in a thread of its own, from the moment of its creation.

    Args:
        make: returns the record: plain JSON values.
        then: receives the record on the same thread, unless it is empty.
    """

    def __init__(
        self, make: Callable[[], dict[str, Any]], then: Callable[[dict[str, Any]], object] | None = None
    ) -> None:
        self._make = make
        self._then = then
        self._record: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="det-provenance", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the record is made and received, or has failed."""
        return not self._thread.is_alive()

    def result(self, timeout_s: float) -> dict[str, Any]:
        """Return the record; {} if it failed, or is not made in time.

        Args:
            timeout_s: how long to wait, in seconds.
        """
        self._thread.join(timeout_s)
        return self._record

    def _run(self) -> None:
        try:
            record = _bounded(_portable(self._make()))
            if record and self._then is not None:
                self._then(record)
            self._record = record
        except Exception:
            # Whatever fails, the submission or the training continues.
            logger.debug("Where this run comes from cannot be recorded.", exc_info=True)


class Captures:
    """The captures of a process that reports several records."""

    def __init__(self) -> None:
        self._running: list[Capture] = []

    def start(self, make: Callable[[], dict[str, Any]], then: Callable[[dict[str, Any]], object]) -> None:
        """Start a capture; arguments as in `Capture`."""
        capture = Capture(make, then)
        self._running = [*(each for each in self._running if not each.is_done), capture]

    def close(self) -> None:
        """Wait a short time for the captures that have not ended."""
        deadline = time.monotonic() + _CLOSING_TIMEOUT_S
        for capture in self._running:
            capture.result(max(0.0, deadline - time.monotonic()))


def _portable(value: Any) -> Any:
    """Return a value with text that is valid Unicode: names of files may be any bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode()
    if isinstance(value, Mapping):
        return {key: _portable(item) for key, item in value.items()}
    return [_portable(item) for item in value] if isinstance(value, list) else value


def _bounded(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record that a master accepts: without its diff if it is too long, else without anything."""
    if len(json.dumps(record)) <= MOST_RECORD_BYTES:
        return record
    if repository := record.get("repository"):
        record = {**record, "repository": {**repository, "diff": "", "isCut": True}}
    return record if len(json.dumps(record)) <= MOST_RECORD_BYTES else {}
