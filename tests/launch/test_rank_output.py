"""The marks on the lines of ranks."""

from __future__ import annotations

import os

import pytest

from det_keras.launch.rank_output import OutputStream, RankLines


@pytest.fixture
def output():
    """An output, and what is read from it so far."""
    read, write = os.pipe()
    yield OutputStream(write), lambda: os.read(read, 1 << 22)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"one\n"], b"[rank=3] one\n"),
        ([b"one\ntwo\n"], b"[rank=3] one\n[rank=3] two\n"),
        ([b"on", b"e\nt", b"wo\n"], b"[rank=3] one\n[rank=3] two\n"),
        ([b"\n\n"], b"[rank=3] \n[rank=3] \n"),
        ([b"10%\r20%\r\n"], b"[rank=3] 20%\r\n"),
        ([b"\r10%", b"\r20%\nnext\r\n"], b"[rank=3] 20%\n[rank=3] next\r\n"),
        ([b"\xff\x00\n"], b"[rank=3] \xff\x00\n"),
        ([b"no end"], b"[rank=3] no end\n"),
    ],
)
def test_lines_are_marked_and_otherwise_left_as_they_are(output, pieces, expected):
    stream, so_far = output
    lines = RankLines(3, stream)
    for piece in pieces:
        lines.feed(piece)
    lines.finish()
    assert so_far() == expected


def test_a_line_is_held_until_it_is_whole(output):
    stream, so_far = output
    first, second = RankLines(0, stream), RankLines(1, stream)
    first.feed(b"be")
    second.feed(b"other\n")
    first.feed(b"gun\n")
    assert so_far() == b"[rank=1] other\n[rank=0] begun\n"


def test_line_that_is_drawn_anew_is_seen_while_it_changes(output, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("det_keras.protocol.log_lines.time.monotonic", lambda: now[0])
    stream, so_far = output
    lines = RankLines(1, stream)
    for count in range(100):
        lines.feed(f"\r{count}/99 [{'#' * count}]".encode())
        now[0] += 0.25
    *shown, _ = so_far().split(b"\n")
    assert [line.partition(b"/")[0] for line in shown] == [b"[rank=1] 4", b"[rank=1] 44", b"[rank=1] 84"]
    lines.feed(b"\nafter\n")
    whole, after, _ = so_far().split(b"\n")
    assert whole.partition(b" [#")[0] == b"[rank=1] 99/99"
    assert after == b"[rank=1] after"


def test_output_whose_reader_is_gone_is_dropped():
    read, write = os.pipe()
    os.close(read)
    RankLines(0, OutputStream(write)).feed(b"nobody\n")
    os.close(write)


def test_an_endless_line_is_cut(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        lines = RankLines(0, OutputStream(file.fileno()))
        for _ in range(40):
            lines.feed(b"x" * (1 << 16))
        lines.finish()
    content = (tmp_path / "out").read_bytes()
    assert content.count(b"x") == 40 << 16
    assert max(map(len, content.split(b"\n"))) < 2 << 20
