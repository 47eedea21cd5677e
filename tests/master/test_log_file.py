"""The master's own log is rotated, and has one traceback of a kind a minute."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from det_keras.master import log_file
from det_keras.master.api import master_log
from det_keras.master.log_file import RareTracebacks

WRITER = """
import logging, os, pathlib, sys
from det_keras.master import log_file

path = pathlib.Path(sys.argv[1])
log_file.MOST_BYTES = 2000
log_file.set_up(path)
for number in range(200):
    logging.getLogger("a").info("line %d of the log", number)
    os.write(2, b"raw %d\\n" % number)
    print("printed", number, flush=True)
"""


def record(
    message: str = "It failed", kind: type[Exception] = ValueError, *args: object
) -> logging.LogRecord:
    try:
        raise kind("reason")
    except Exception:
        return logging.LogRecord("a", logging.ERROR, __file__, 1, message, args, sys.exc_info())


@pytest.mark.process
def test_log_is_rotated_with_all_that_is_written_to_the_output(tmp_path):
    path = tmp_path / "master.log"
    with path.open("ab") as output:
        subprocess.run([sys.executable, "-c", WRITER, str(path)], stdout=output, stderr=output, check=True)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"master.log", *(f"master.log.{number}" for number in range(1, 5))}
    # A record is written after a look at the size, and beside it what is not logged.
    assert all(file.stat().st_size < 2300 for file in tmp_path.iterdir())
    text = path.read_text()
    assert "line 199 of the log" in text
    assert "raw 199" in text
    assert "printed 199" in text


@pytest.mark.process
def test_output_that_is_another_file_is_not_rotated(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "master.log")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("of the log") == 200
    assert list(tmp_path.iterdir()) == []


def test_one_traceback_of_a_kind_a_minute_is_written_with_the_number_of_the_others():
    now = [0.0]
    rare = RareTracebacks(lambda: now[0])
    assert [rare.filter(record()) for _ in range(5)] == [True, False, False, False, False]
    assert rare.filter(record("Another message"))
    assert rare.filter(record("It failed", KeyError))
    now[0] = 59.0
    assert not rare.filter(record())
    now[0] = 61.0
    shown = record("It failed")
    assert rare.filter(shown)
    assert shown.getMessage() == "It failed (5 more like this were left out since the last one)"
    assert not rare.filter(record())


def test_messages_without_a_traceback_are_all_written():
    rare = RareTracebacks()
    plain = logging.LogRecord("a", logging.ERROR, __file__, 1, "It failed", (), None)
    assert all(rare.filter(plain) for _ in range(5))


def test_number_of_known_kinds_is_bounded():
    rare = RareTracebacks(lambda: 0.0)
    assert all(rare.filter(record(f"Message {number}")) for number in range(log_file._MOST_KINDS + 10))
    assert len(rare._shown) == log_file._MOST_KINDS
    assert rare.filter(record("Message 0"))


def test_reader_of_a_rotated_log_continues_with_the_new_file(tmp_path: Path):
    path = tmp_path / "master.log"
    path.write_text("one\ntwo\n")
    entries, position = master_log._read(path, 0)
    assert [entry["message"] for entry in entries] == ["one", "two"]
    path.rename(tmp_path / "master.log.1")
    path.write_text("three\n")
    entries, position = master_log._read(path, position)
    assert [entry["message"] for entry in entries] == ["three"]
    assert position == len("three\n")
