"""Why a task failed, from what it printed: its last traceback, or else its last lines on stderr."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from det_keras.protocol.log_levels import TracebackReader

_MOST_LINES = 12
_LONGEST_TRACEBACK_LINES = 200
_LONGEST_REASON = 8_000


class ExitReason:
    """Keeps the end of a task's output while it runs."""

    def __init__(self) -> None:
        self._readers: dict[tuple[str, int | None], TracebackReader] = {}
        self._open: dict[tuple[str, int | None], deque[str]] = {}
        self._last: deque[str] = deque()
        self._stderr: deque[str] = deque(maxlen=_MOST_LINES)

    def add(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Take in entries of the log, in their order."""
        for entry in entries:
            key, text = (entry["s"], entry.get("r")), entry["m"]
            # Ranks take turns line by line, so each has a traceback of its own.
            if self._readers.setdefault(key, TracebackReader()).read(text):
                self._last = self._open.setdefault(key, deque(maxlen=_LONGEST_TRACEBACK_LINES))
                self._last.append(text)
            elif text.strip():
                # Other output ends a traceback: the next one is not of the same chain.
                self._open.pop(key, None)
                if entry["s"] == "stderr":
                    self._stderr.append(text)

    def text(self, code: int) -> str:
        """Return the reason for an exit code; the last line is the shortest answer.

        Args:
            code: exit code of the task, 128 + N after signal N.

        Returns:
            Empty if the task succeeded, or printed neither a traceback nor anything on stderr.
        """
        if code == 0:
            return ""
        lines = self._last or self._stderr
        text = "".join(line.rpartition("\r")[2] or line for line in lines).strip("\n")[-_LONGEST_REASON:]
        return "\n".join(part for part in (text, _signal_text(code)) if part)


def _signal_text(code: int) -> str:
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return ""
    hint = " It may have needed more memory than the machine has." if name == "SIGKILL" else ""
    return f"The process was ended by {name}.{hint}"
