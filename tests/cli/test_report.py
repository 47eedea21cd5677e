"""`det experiment report` against masters that make reports, and others."""

from __future__ import annotations

import json

import pytest

from det_keras.protocol.api.accounts import OWN_VERSION_KEY

HEAD = b'<!doctype html><meta name="generator" content="det_keras 0.1.0">'


@pytest.fixture
def asked(det, stub):
    """`det`, pointed at a master with one experiment."""
    stub.answers["/info"] = {OWN_VERSION_KEY: "0.1.0"}
    return det.with_variables(DET_MASTER=stub.url, DET_USER_TOKEN="t")


def files(det) -> list[str]:
    return sorted(path.name for path in det.directory.iterdir())


def test_a_report_is_written_as_a_whole(asked, stub):
    stub.answers["/experiments/7/report"] = HEAD + b"x" * 100_000
    stub.answers["/experiments/7/report.png"] = b"\x89PNG\r\n" + b"x" * 100
    assert asked.out("experiment", "report", "7", "-o", "a.html", "--png", "a.png") == (
        "Wrote a.html (97.7KB).\nWrote a.png (106B).\n"
    )
    assert (asked.directory / "a.html").read_bytes() == HEAD + b"x" * 100_000
    assert files(asked) == ["a.html", "a.png"]


def test_a_report_has_a_name_of_its_own(asked, stub):
    stub.answers["/experiments/7/report"] = HEAD
    asked.out("e", "report", "7")
    assert files(asked) == ["experiment-7.html"]


def test_another_master_makes_no_reports(asked, stub):
    stub.answers["/info"] = {"version": "0.38.1"}
    stub.answers["/experiments/7/report"] = b"<!doctype html><title>Determined</title>"
    (asked.directory / "old.html").write_text("old")
    done = asked("experiment", "report", "7", "-o", "old.html")
    assert done.returncode == 1
    assert f"The master at {stub.url} makes no reports" in done.stderr
    assert "Traceback" not in done.stderr
    assert files(asked) == ["old.html"]
    assert (asked.directory / "old.html").read_text() == "old"


def test_a_missing_experiment_is_told_from_that(asked):
    done = asked("experiment", "report", "8")
    assert done.returncode == 1
    assert "no such thing" in done.stderr
    assert files(asked) == []


def test_a_directory_that_is_not_there_is_named(asked, stub):
    stub.answers["/experiments/7/report"] = HEAD
    done = asked("experiment", "report", "7", "-o", "nowhere/a.html")
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_text_is_sent_for_the_top_of_the_page(asked, stub):
    stub.answers["/experiments/7/report"] = HEAD
    (asked.directory / "text.md").write_text("# Größe", encoding="utf-8")
    asked.out("experiment", "report", "7", "--text", "text.md")
    method, path, _ = stub.calls[-1]
    assert (method, path) == ("POST", "/experiments/7/report")
    assert json.loads(stub.bodies[-1]) == {"text": "# Größe"}


def test_a_text_that_is_not_utf_8_is_named(asked, stub):
    (asked.directory / "text.md").write_bytes(b"\xff")
    done = asked("experiment", "report", "7", "--text", "text.md")
    assert done.returncode == 1
    assert "text.md is not text in UTF-8" in done.stderr
    assert stub.calls == []


def test_cards_view_and_text_are_sent(asked, stub):
    stub.answers["/experiments/7/report"] = HEAD
    (asked.directory / "a.md").write_text("![](card:loss)")
    cards = 'val_loss,"opt/norm, all", val_loss - ema(loss, .9)'
    asked.out("experiment", "report", "7", "--cards", cards, "--view", "/trials/3?x=time", "--text", "a.md")
    assert json.loads(stub.bodies[-1]) == {
        "text": "![](card:loss)",
        "cards": ["val_loss", '"opt/norm, all"', "val_loss - ema(loss, .9)"],
        "view": "/trials/3?x=time",
    }
    assert "commas between them" in asked("experiment", "report", "7", "--cards", "loss,").stderr
