"""Levels of log lines: `logging` and the interpreter print the lines that are read."""

from __future__ import annotations

import io
import logging
import re
import traceback
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_keras.protocol.log_levels import LevelReader


def levels(text, stream="stdout"):
    reader = LevelReader(stream)
    # Not `splitlines`: a carriage return does not end a line of a log.
    return [reader.read(line) for line in re.findall(r"[^\n]*\n", text)]


@pytest.mark.parametrize(
    "form",
    [
        logging.BASIC_FORMAT,
        "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
        "[%(levelname)s] %(message)s",
        "%(asctime)s | %(levelname)s | %(message)s",
        "%(asctime)s.%(msecs)03d %(process)d %(levelname)s: %(message)s",
    ],
)
@given(level=st.sampled_from([logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL]))
def test_levels_of_logging_are_read_in_its_usual_formats(form, level):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(form))
    handler.emit(logging.LogRecord("mine", level, __file__, 1, "a message", (), None))
    assert levels(stream.getvalue()) == [logging.getLevelName(level)]


def chained():
    try:
        try:
            {}["key"]
        except KeyError as error:
            raise ValueError("two") from error
    except ValueError:
        return traceback.format_exc()


def test_every_line_of_a_traceback_is_an_error():
    text = chained()
    lines = text.splitlines(keepends=True)
    found = levels(f"{text}after\n")
    assert all(level == "ERROR" for line, level in zip(lines, found, strict=False) if line.strip())
    assert found[-1] is None


def test_tracebacks_of_two_ranks_may_be_mixed():
    reader = LevelReader("stderr")
    lines = traceback.format_exception(ValueError("x")) and chained().splitlines(keepends=True)[:4]
    for line in lines:
        assert reader.read(line, "0") == reader.read(line, "1") == "ERROR"
    assert reader.read("plain\n", "2") == "WARNING"


def test_warnings_of_python_are_warnings():
    text = warnings.formatwarning("old", DeprecationWarning, "/some/file.py", 3)
    assert levels(text, "stderr")[0] == "WARNING"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-01-31 12:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN\n", "INFO"),
        ("2026-01-31 12:00:00.123456: E external/xla.cc:1] no driver\n", "ERROR"),
        ("W0000 00:00:1700000000.000001  4242 file.cc:1] careful\n", "WARNING"),
        ("E0131 12:00:00.123456 4242 file.cc:1] broken\n", "ERROR"),
        ("50%|#####     | 5/10\r60%|######    | 6/10\n", None),
        ("an error occurred in no particular format\n", None),
        ("\x1b[31mERROR\x1b[0m: coloured\n", "ERROR"),
    ],
)
def test_formats_of_libraries(line, level):
    assert levels(line, "stdout") == [level]


def test_plain_stderr_is_a_warning_but_a_progress_bar_is_not():
    assert levels("careful\n", "stderr") == ["WARNING"]
    assert levels("1/2\r2/2\n", "stderr") == [None]
    assert levels("careful\n", "stdout") == [None]
