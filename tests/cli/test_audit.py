"""`det master audit` against a real master."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def det(cluster):
    cluster.write("own.yaml", "name: own\nentrypoint: 'true'\nsearcher: {name: single, metric: loss}\n")
    return cluster


def test_changes_are_listed_filtered_and_shown_with_the_experiment(det):
    printed = det.out("experiment", "create", "own.yaml", ".", "--paused")
    number = printed.split("experiment ")[1].split()[0]
    det.out("experiment", "kill", number)
    entries = det.json("master", "audit", "--object", f"experiment:{number}")
    assert [entry["verb"] for entry in entries] == ["kill", "create"]
    table = det.out(
        "master", "audit", "--object", f"experiment:{number}", "--by", "determined", "--days", "1"
    )
    assert "killed by determined" in table
    assert f"experiment {number}" in table
    assert "killed by determined" in det.out("experiment", "describe", number)
    assert "killed" not in det.out("master", "audit", "--by", "admin")
    assert "1 of " in det.out("master", "audit", "--limit", "1")
    assert "Only administrators" in det("master", "prune", "--audit", "0", "--yes").stderr
    assert "kind" in det("master", "audit", "--object", ":7").stderr
