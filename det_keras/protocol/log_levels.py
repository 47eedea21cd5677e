"""The level of a log line, read from its text: from words such as ``ERROR``, tracebacks, and the stream."""

from __future__ import annotations

import re

_BEGIN = re.compile(r"\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):")
# The lines between two tracebacks of one chain.
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# A level as `logging` and most other libraries print it: near the start of the line, as a word of its own.
_WORD = re.compile(
    r"(?:^|.{0,60}?[\s\[(|:\-])(TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)(?=[\s\])|:,\-]|$)"
)
# As glog and TensorFlow print it: `E0000 12:00:00`, `2026-01-31 12:00:00.123456: E tensorflow/`.
_LETTER = re.compile(r"(?:([IWEF])\d{4} \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWEF]) )")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)(?:: |$)")
_WARNING = re.compile(r"\S+:\d+: \w*Warning: ")
_LETTERS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_WORDS = {"WARN": "WARNING", "FATAL": "CRITICAL"}
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TracebackReader:
    """Recognises the lines of Python tracebacks among the lines of one rank."""

    def __init__(self) -> None:
        self._is_inside = False

    def read(self, text: str) -> bool:
        """Return whether the next line belongs to a traceback; its last line is that of the exception."""
        if _BEGIN.match(text):
            self._is_inside = True
            return True
        if text.startswith(_CHAIN):
            return True
        was_inside = self._is_inside
        # Frames are indented; the exception's own line is not.
        if was_inside and text[:1] not in (" ", "\t", "\n", "\r", ""):
            self._is_inside = False
        return was_inside


class LevelReader:
    """Derives the levels of the lines of one stream, whose ranks may take turns.

    Args:
        stream: ``stdout`` or ``stderr``.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._tracebacks: dict[str | None, TracebackReader] = {}

    def read(self, text: str, rank: str | None = None) -> str | None:
        """Return the level of the next line, such as ``ERROR``; None for plain output.

        A line of stderr without a level is a warning, except progress bars, which return to the line's start.

        Args:
            text: the line.
            rank: the rank that printed it.
        """
        if self._tracebacks.setdefault(rank, TracebackReader()).read(text):
            return "ERROR"
        plain = _CODES.sub("", text) if "\x1b" in text else text
        if (letter := _LETTER.match(plain)) is not None:
            return _LETTERS[letter[1] or letter[2]]
        if (word := _WORD.match(plain)) is not None:
            return _WORDS.get(word[1], word[1])
        if self._stream != "stderr":
            return None
        if _EXCEPTION.match(plain):
            return "ERROR"
        if _WARNING.match(plain):
            return "WARNING"
        return None if "\r" in plain.rstrip("\r\n") or not plain.strip() else "WARNING"
