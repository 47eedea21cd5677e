"""The file with the log of one allocation."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_NEWLINE = b"\n"


class LogFile:
    """The log of one allocation; the master reads it while entries are appended.

    Args:
        path: of the log; created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._is_broken = False

    def write(self, entries: Iterable[dict[str, Any]]) -> None:
        """Append entries; when the disk is full, the entries are lost and the task continues."""
        data = b"".join(json.dumps(entry).encode() + _NEWLINE for entry in entries)
        if self._is_broken:
            # The failed write may have left part of an entry: the newline ends it.
            data = _NEWLINE + data
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
                self._is_broken = False
            except OSError:
                self._is_broken = True
                return

    def note(self, text: str, level: str) -> None:
        """Append a message of the supervisor."""
        self.write([{"t": time.time(), "s": "stderr", "l": level, "m": text}])

    def close(self) -> None:
        """Flush the log to the disk, so that a power cut loses nothing, and close it."""
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)
