"""Logs of which a command prints some lines, and how long they are kept."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process

SCRIPT = """
import sys
print("INFO: one", flush=True)
print("WARNING: two", flush=True)
print("ERROR: three", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def printed(cluster):
    """The number of an experiment that printed three lines, which is that of its trial as well."""
    cluster.write("train.py", SCRIPT)
    cluster.write("c.yaml", "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n")
    number = cluster.out("experiment", "create", "c.yaml", ".").split("experiment ")[1].split()[0]
    cluster("experiment", "wait", number)
    return number


def texts(text: str) -> list[str]:
    return [line.split(": ")[-1] for line in text.splitlines() if line.endswith(("one", "two", "three"))]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--level", "warning"], ["two", "three"]),
        (["--level", "error"], ["three"]),
        (["--search", "TWO"], ["two"]),
        (["--regex", "on[e]|thr"], ["one", "three"]),
        (["--stdtype", "stderr"], ["three"]),
        (["--stdtype", "stderr", "--stdtype", "stdout"], ["one", "two", "three"]),
        (["--rank-id", "7"], []),
        (["--rank-id", "-1"], ["one", "two", "three"]),
        (["--agent-id", "nowhere"], []),
        (["--source", "master"], []),
        (["--timestamp-before", "2020-01-01T00:00:00Z"], []),
        (["--timestamp-after", "2020-01-01T00:00:00Z", "--tail", "1", "--search", "e"], ["three"]),
        (["--follow", "--search", "two"], ["two"]),
    ],
    ids=" ".join,
)
def test_lines_are_chosen(cluster, printed, options, found):
    assert texts(cluster.out("trial", "logs", printed, *options)) == found


def test_experiment_has_the_same_options(cluster, printed):
    assert texts(cluster.out("experiment", "logs", printed, "--level", "error")) == ["three"]


def test_wrong_choices_are_told(cluster, printed):
    for options in (["--search", "a", "--regex", "b"], ["--regex", "("], ["--timestamp-before", "yesterday"]):
        done = cluster("trial", "logs", printed, *options)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), options
        assert done.stderr.strip()


def test_logs_are_kept_as_long_as_the_commands_say(cluster, printed):
    assert cluster.out("experiment", "retain-logs", printed, "--days", "30") == (
        f"Logs of experiment {printed}: kept for 30 days after the end of the experiment\n"
    )
    assert (
        cluster.out("trial", "retain-logs", printed, "--forever")
        == f"Log of trial {printed}: kept for ever\n"
    )
    assert cluster.json("experiment", "describe", printed)["config"]["retention_policy"] == {
        "log_retention_days": 30
    }
    assert "numDays" in cluster("trial", "retain-logs", printed, "--days", "-5").stderr
    assert cluster("trial", "retain-logs", printed).returncode == 2
