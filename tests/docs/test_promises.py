"""docs/promises.md and the tests: each promise has pilots, and what the table names exists."""

from __future__ import annotations

import re

import pytest
import tiers

from docs.pages import ROOT

ROWS = list(tiers.rows())


def test_each_promise_has_a_row():
    section = tiers.PAGE.read_text(encoding="utf-8").split("## The promises")[1].split("\n## ")[0]
    promises = {name.rstrip(".:") for name in re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE)}
    assert len(promises) > 10
    assert promises == {row.promise for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.promise}: {row.subject}")
def test_tests_of_a_promise_exist(row):
    assert row.pilots
    assert row.full
    for path in row.full:
        assert (ROOT / path).exists()
    for pilot in row.pilots:
        path, _, name = pilot.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"\ndef {name.partition('[')[0]}(" in text, pilot


def test_each_pilot_is_collected(request):
    """A pilot whose parameters were renamed would not run, and nothing would say so."""
    files = {item.path for item in request.session.items}
    if len(files) < 2:
        pytest.skip("only a part of the tests was asked for")
    asked = {path.relative_to(ROOT).as_posix() for path in files}
    collected = request.config.stash[tiers.COLLECTED]
    missing = {
        pilot
        for pilot in tiers.pilots()
        if pilot.partition("::")[0] in asked
        and not any(name == pilot or name.startswith((f"{pilot}[", f"{pilot}::")) for name in collected)
    }
    assert not missing
