"""Lines of a log: cut, marked, written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_keras.launch.log_lines import LogFile
from det_keras.protocol.log_lines import LineSplitter, split_text


def split(*chunks: bytes) -> list[tuple]:
    splitter = LineSplitter("stdout")
    entries = [entry for chunk in chunks for entry in splitter.feed(chunk)] + splitter.finish()
    return [(entry["m"], entry.get("l"), entry.get("r")) for entry in entries]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"plain\n", ("plain\n", None, None)),
        (b"no newline", ("no newline\n", None, None)),
        (b"INFO: said\n", ("said\n", "INFO", None)),
        (b"[rank=3] said\n", ("said\n", None, 3)),
        (b"[rank=3] ERROR: said\n", ("said\n", "ERROR", 3)),
        (b"NOISE: said\n", ("NOISE: said\n", None, None)),
        (b"said INFO: later\n", ("said INFO: later\n", None, None)),
        (b"\n", ("\n", None, None)),
        (b"\xff\xfe\n", ("��\n", None, None)),
    ],
)
def test_marks_are_taken_off(data, expected):
    assert split(data) == [expected]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"\r 1/9\r 2/9\r 9/9\n"], [" 9/9\n"]),
        ([b"\r 1/9", b"\r 2/9", b"\r 9/9", b"\nnext\n"], [" 9/9\n", "next\n"]),
        ([b"1/9\r", b"9/9\r", b"\n"], ["9/9\r\n"]),
        ([b"windows\r\n"], ["windows\r\n"]),
        ([b"1/9\r2/9"], ["2/9\n"]),
        ([b"\r" + b"x" * 5000, b"\r" + b"y" * 5000, b"\n"], ["y" * 5000 + "\n"]),
    ],
)
def test_line_that_is_drawn_anew_is_what_it_shows_last(chunks, expected):
    assert [text for text, _, _ in split(*chunks)] == expected


def test_line_that_is_drawn_anew_is_seen_while_it_changes(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("det_keras.protocol.log_lines.time.monotonic", lambda: now[0])
    splitter, seen = LineSplitter("stderr"), []
    for count in range(100):
        seen += splitter.feed(f"\r{count}/99 [{'#' * count}]".encode())
        now[0] += 0.25
    # After a second, then one every ten seconds, and not as many as were drawn.
    assert [entry["m"].split("/")[0] for entry in seen] == ["4", "44", "84"]
    assert [entry["m"].split("/")[0] for entry in splitter.feed(b"\nafter\n")] == ["99", "after\n"]


def test_line_in_pieces_is_one_line():
    assert split(b"a", b"b", b"c\nd") == [("abc\n", None, None), ("d\n", None, None)]


def test_long_line_is_cut_at_8_kb_and_keeps_its_marks():
    entries = split(b"[rank=1] ERROR: " + b"x" * 20_000 + b"\nnext\n")
    assert [len(text) for text, _, _ in entries[:-1]] == [8192 - 16, 8192, 20_000 - (8192 - 16) - 8192 + 1]
    assert {marks for _, *marks in ((t, (lv, r)) for t, lv, r in entries[:-1]) for marks in marks} == {
        ("ERROR", 1)
    }
    assert entries[-1] == ("next\n", None, None)


@given(st.text(alphabet="aé漢🙂", min_size=1, max_size=20), st.integers(100, 4096))
def test_no_character_is_broken(text, size):
    text *= 1 + 20_000 // len(text)
    data = text.encode() + b"\n"
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assert "".join(piece for piece, _, _ in split(*chunks)) == text + "\n"


def test_full_disk_costs_lines_and_nothing_else(tmp_path, monkeypatch):
    import errno
    import os

    log = LogFile(tmp_path / "log.jsonl")
    real_write = os.write

    def full(descriptor, data):
        if monkeypatch_state["full"]:
            real_write(descriptor, data[:5])
            raise OSError(errno.ENOSPC, "full")
        return real_write(descriptor, data)

    monkeypatch_state = {"full": True}
    monkeypatch.setattr("det_keras.launch.log_lines.os.write", full)
    log.note("lost\n", "INFO")
    monkeypatch_state["full"] = False
    log.note("kept\n", "INFO")
    log.close()
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines()
    assert json.loads(lines[-1])["m"] == "kept\n"


@given(st.text(max_size=40), st.sampled_from([1, 300, 3000]), st.integers(0, 9000))
def test_long_text_is_split_without_a_loss(pattern, times, padding):
    text = "x" * padding + pattern * times
    parts = list(split_text(text))
    assert "".join(parts) == text
    assert all(len(part.encode()) <= 8192 for part in parts)
    # Only the last part may be shorter than a character less than the limit.
    assert all(len(part.encode()) > 8192 - 4 for part in parts[:-1])
