from __future__ import annotations

import io
import re

import pytest

from det_keras import display
from det_keras.cli import render


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (12345.678, "1.235e+04"),
        (3, "3"),
        (3.0, "3"),
        (None, "-"),
        ("NaN", "NaN"),
        ([1, 2], "[1, 2]"),
        (True, "true"),
        (1e-07, "1e-07"),
    ],
)
def test_numbers_are_rounded_as_people_read_them(value, text):
    assert display.number_text(value) == text


def test_a_metric_keeps_its_decimal():
    assert [display.metric_text(value) for value in (1.0, 0.5, 7)] == ["1.0", "0.5", "7"]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (1023, "1023B"), (2560, "2.5KB"), (3 << 20, "3.0MB"), (5 << 40, "5.0TB")]
)
def test_sizes(size, text):
    assert display.size_text(size) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(None, "-"), (0.0, "0%"), (0.29, "29%"), (0.999, "99%"), (1.0, "100%")]
)
def test_progress_is_never_rounded_up_to_done(fraction, text):
    assert display.percent_text(fraction) == text


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:10.5Z", "6s"),
        ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:06:05Z", "2m 00s"),
        ("2026-01-02T03:04:05+00:00", "2026-01-02T05:10:05Z", "2h 06m"),
        ("2026-01-02T03:04:05Z", "2026-01-05T05:10:05Z", "3d 02h"),
        (None, None, "-"),
    ],
)
def test_durations(start, end, text):
    assert display.duration_text(start, end) == text


def test_a_table_in_a_pipe_is_aligned_and_keeps_ids_whole(capsys):
    uuid = "f43ab792-c258-451a-b528-458b3cd5cbc3"
    render.print_table(["UUID", "Size>", "Text"], [[uuid, "5", "word " * 60], [uuid, "1234", "x"]])

    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 3
    assert all(line == line.rstrip() for line in lines)
    assert lines[1].startswith(f"{uuid}     5  word word")
    assert lines[2] == f"{uuid}  1234  x"


def test_a_narrow_terminal_wraps_texts_and_never_cuts_an_id(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    uuid = "f43ab792-c258-451a-b528-458b3cd5cbc3"

    render.print_table(["Text", "UUID"], [["word " * 20, uuid]])

    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert uuid in lines[1]
    assert len(lines) > 4
    assert max(map(len, lines)) <= 60


def test_what_a_user_named_cannot_steer_the_terminal(capsys):
    render.print_table(["Name"], [["[red]\x1b[31mevil\x07"]])

    assert capsys.readouterr().out.splitlines()[1] == "[red] [31mevil"


def test_named_values_are_aligned(capsys):
    render.print_facts({"State": "COMPLETED", "Experiment": "1"})

    assert capsys.readouterr().out == "State:      COMPLETED\nExperiment: 1\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x1b[2J\x1b[H\x1bc", r"\x1b[2J\x1b[H\x1bc"),
        ("\x1b[1;31mred\x1b[0m\x1b[6n", "\x1b[1;31mred\x1b[0m" + r"\x1b[6n"),
        ("\x9b2J \x00 \x7f", r"\x9b2J \x00 \x7f"),
        ("over\rwritten\b", r"over\rwritten\x08"),
        ("ends as in Windows\r\n", "ends as in Windows\n"),
        ("a\tb\n\u00e9\u6f22", "a\tb\n\u00e9\u6f22"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
    ],
    ids=["title", "clear", "colour", "eight bits", "return", "line end", "text", "reordered"],
)
def test_terminal_shows_control_characters_and_obeys_only_colours(text, shown):
    terminal, pipe, raw = Terminal(), io.StringIO(), Terminal()
    render.write(text, terminal)
    render.write(text, pipe)
    render.write(text, raw, is_raw=True)
    assert (terminal.getvalue(), pipe.getvalue(), raw.getvalue()) == (shown, text, text)
