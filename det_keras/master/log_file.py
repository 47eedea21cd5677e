"""The master's own log, which ends: rotated by size, and with one traceback of a kind a minute.

A master that is attacked, or that has run out of something, can log the same traceback thousands of times a second.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from det_keras.about import LOG_FORMAT
from det_keras.master.repeated_line import Rate

#: The size at which the log is rotated, and how many earlier files are kept.
MOST_BYTES = 16 << 20
EARLIER_FILES = 4

_FORMAT = f"%(asctime)s {LOG_FORMAT}"
_MOST_KINDS = 1000
# The place where an exception was raised; its type; the logger and the text of the message.
_Kind = tuple[object, ...]


def set_up(path: Path) -> None:
    """Let all loggers of this process write to its standard error, and rotate that if it is the file `path`."""
    handler = _RotatedOutput(path) if _is_output(path) else logging.StreamHandler()
    handler.addFilter(RareTracebacks())
    logging.basicConfig(level=logging.INFO, format=_FORMAT, handlers=[handler])


class RareTracebacks(logging.Filter):
    """Passes one traceback of a kind a minute, with the number of those that were left out before it.

    A kind is the message with the exception's type and the line that raised it.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # Least recently shown first.
        self._shown: dict[_Kind, Rate] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        kind = _kind(record)
        if kind is None:
            return True
        rate = self._shown.get(kind) or Rate()
        left_out = rate.take(self._clock())
        if left_out is None:
            return False
        self._shown.pop(kind, None)
        self._shown[kind] = rate
        if len(self._shown) > _MOST_KINDS:
            del self._shown[next(iter(self._shown))]
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more like this were left out since the last one)"
            record.args = ()
        return True


class _RotatedOutput(RotatingFileHandler):
    """The file to which standard output and error of this process lead, also after it was rotated."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=EARLIER_FILES, encoding="utf-8")

    def doRollover(self) -> None:  # noqa: N802 - the name is that of the base class
        """Rotate the files."""
        super().doRollover()
        assert self.stream is not None
        # What is written without a logger would fill the earlier file, also when that has been deleted.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for descriptor in (1, 2):
            os.dup2(self.stream.fileno(), descriptor)


def _is_output(path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(2))
    except OSError:
        return False


def _kind(record: logging.LogRecord) -> _Kind | None:
    """Return what records of the same kind have in common; None for one without a traceback."""
    if not record.exc_info or record.exc_info[0] is None:
        return None
    trace = record.exc_info[2]
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return record.name, str(record.msg), record.exc_info[0], place
