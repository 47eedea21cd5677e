"""Splits a task's output into entries of its log, of a limited length.

A progress bar returns to the begin of its line and draws itself anew. Only the newest state of such a line counts: it
becomes an entry now and then while it changes, and at its end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from det_keras.protocol.log_levels import LevelReader

# As in the original: a longer line becomes several entries.
_LONGEST_LINE_BYTES = 8 * 1024
_MARKS = re.compile(r"(?:\[rank=(\d{1,9})\] )?(?:(TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL): )?")
_NEWLINE, _RETURN = b"\n", b"\r"
# When a line that is drawn anew is shown first, and how often from then on, in seconds.
_FIRST_SHOWN_S, _SHOWN_S = 1.0, 10.0


class Redraws:
    """Tells when a line that is drawn anew is to be shown although it has not ended."""

    def __init__(self) -> None:
        # When it is shown next; None while there is no such line.
        self._due_at: float | None = None

    def take(self, rest: bytes, *, is_new: bool) -> bytes | None:
        """Return what to show now of the unfinished line, None for nothing.

        Args:
            rest: the line so far.
            is_new: whether it has begun since the last call.
        """
        if is_new:
            self._due_at = None
        if self._due_at is None and _RETURN not in rest.rstrip(_RETURN):
            return None
        now = time.monotonic()
        if self._due_at is None:
            self._due_at = now + _FIRST_SHOWN_S
        if now < self._due_at or not rest.strip(_RETURN):
            return None
        self._due_at = now + _SHOWN_S
        return newest(rest)


class LineSplitter:
    """Cuts the bytes of one stream into entries for the log.

    Args:
        stream: ``stdout`` or ``stderr``.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._levels = LevelReader(stream)
        self._rest = b""
        self._rank: str | None = None
        self._level: str | None = None
        self._derived_level: str | None = None
        self._is_continuation = False
        self._redraws = Redraws()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the entries that `data` completes, and that of a line which is drawn anew if it is due."""
        *lines, rest = (self._rest + data).split(_NEWLINE)
        entries = [entry for line in lines for entry in self._cut(newest(line) + _NEWLINE, is_whole=True)]
        shown = self._redraws.take(rest, is_new=bool(lines))
        if shown is not None:
            entries += self._cut(shown + _NEWLINE, is_whole=True)
        entries += self._cut(newest(rest), is_whole=False)
        return entries

    def finish(self) -> list[dict[str, Any]]:
        """Return the entry of a last line that has no newline, if there is one."""
        rest, self._rest = self._rest, b""
        return [self._entry(rest + _NEWLINE)] if rest else []

    def _cut(self, line: bytes, *, is_whole: bool) -> list[dict[str, Any]]:
        entries = []
        while len(line) > _LONGEST_LINE_BYTES:
            at = _character_boundary(line, _LONGEST_LINE_BYTES)
            entries.append(self._entry(line[:at]))
            self._is_continuation = True
            line = line[at:]
        if is_whole:
            entries.append(self._entry(line))
            self._is_continuation = False
            line = b""
        self._rest = line
        return entries

    def _entry(self, line: bytes) -> dict[str, Any]:
        text = line.decode("utf-8", errors="replace")
        if not self._is_continuation:
            marks = _MARKS.match(text)
            assert marks is not None
            self._rank, self._level = marks.groups()
            text = text[marks.end() :]
            self._derived_level = self._level or self._levels.read(text, self._rank)
        entry: dict[str, Any] = {"t": time.time(), "s": self._stream, "m": text}
        if self._rank is not None:
            entry["r"] = int(self._rank)
        if self._level is not None:
            entry["l"] = self._level
        elif self._derived_level is not None:
            entry["v"] = self._derived_level
        return entry


def newest(line: bytes) -> bytes:
    """Return what a line shows after all its returns to its begin; those at its end have replaced nothing yet."""
    shown = line.rstrip(_RETURN)
    return line[shown.rfind(_RETURN) + 1 :]


def split_text(text: str) -> Iterator[str]:
    """Yield the text of a line in the parts that are entries of the log; nothing of it is lost.

    Args:
        text: Unicode text of any length.
    """
    # Most lines are short, and no character needs more than 4 bytes.
    if len(text) <= _LONGEST_LINE_BYTES // 4:
        yield text
        return
    line = text.encode()
    begin = 0
    while len(line) - begin > _LONGEST_LINE_BYTES:
        end = _character_boundary(line, begin + _LONGEST_LINE_BYTES)
        yield line[begin:end].decode()
        begin = end
    yield line[begin:].decode()


def _character_boundary(line: bytes, at: int) -> int:
    """Return the last position up to `at` that does not split a UTF-8 character."""
    for back in range(4):
        if line[at - back] & 0xC0 != 0x80:
            return at - back
    return at
