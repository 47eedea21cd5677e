"""The wall time of each test file: printed at the end of a run, kept for the next one, and used to order the files.

A run writes what it measured to ``build/test-times/NAME.json``, where NAME is that of the tox environment. ``python
tests/times.py show`` prints these figures again, and ``keep`` copies them to ``benchmarks/test_times.json``, which is
in the repository. Each file is shown beside the figure that is kept, so a change shows what it adds.

The order of the files follows from the figures, too: processes that share the tests file by file begin with the longest
and end with short ones, so that none is left with minutes of work alone.

The times of one file add up, whichever process of the run it was in. With two processes the run takes about half of the
sum.

Tests that start no process and yet take more than a second are kept by name: they are not in the fast tier
(`tiers.py`).

Continuous integration has a limit of time, and the suite grows. So each of its runs takes one share of the files that
are not fast, and the next commit another one; how many shares there are follows from the figures. With the newest
packages and on PostgreSQL a run takes every second file.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tiers import PROCESS_MARKERS

__all__ = ["Times", "kept_times", "last_times", "passed_tests", "share_of", "slow_tests"]

_ROOT = Path(__file__).resolve().parents[1]
_KEPT = _ROOT / "benchmarks" / "test_times.json"
_RUNS = _ROOT / "build" / "test-times"
#: Shorter files are not shown, and keep their order.
_SHOWN_S = 1.0
#: Tests that take longer are slow.
_SLOW_S = 1.0
_SLOW = "slow tests"
#: What the files of a share take at most: a quarter of an hour with three processes.
SHARE_S = 2700.0


class Times:
    """A plugin of pytest that measures, prints and stores the times.

    Args:
        name: of the run.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._seconds: dict[str, float] = defaultdict(float)
        self._outcomes: dict[str, str] = {}
        self._tests: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of the setup, the call or the teardown of a test to that of its file."""
        # With `--dist loadgroup` a test's name ends with its group.
        name = report.nodeid.partition("@")[0]
        self._seconds[name.partition("::")[0]] += report.duration
        if not PROCESS_MARKERS & set(report.keywords):
            self._tests[name] += report.duration
        if report.when == "call" or report.outcome != "passed":
            # A failure of the teardown replaces a success of the call.
            self._outcomes[name] = report.outcome

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the times of the files, longest first."""
        if not self._outcomes:
            return
        terminalreporter.section("wall time by file, in seconds")
        for line in _table(self._name, self._seconds):
            terminalreporter.write_line(line)

    def pytest_sessionfinish(self) -> None:
        """Store the times, and the tests that passed."""
        if not self._outcomes:
            return
        _RUNS.mkdir(parents=True, exist_ok=True)
        passed = sorted(name for name, outcome in self._outcomes.items() if outcome == "passed")
        path = _RUNS / f"{self._name}.json"
        # A run of a part does not remove what is known of the others.
        files = {**_read(path).get("files", {}), **self._seconds}
        tests = {**_read(path).get("tests", {}), **self._tests}
        content = {
            "files": dict(_longest_first(files)),
            "passed": passed,
            "tests": dict(_longest_first(tests)),
        }
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def kept_times(name: str) -> dict[str, float]:
    """Return the seconds of each file, from the root of the repository, that are kept for a run; empty if none are."""
    return _read(_KEPT).get(name, {})


def last_times(name: str) -> dict[str, float]:
    """Return the seconds of each file in the last run of this name, else those that are kept for it or for any run."""
    kept = _read(_KEPT)
    any_run = {
        path: seconds for run, files in kept.items() if run != _SLOW for path, seconds in files.items()
    }
    return _read(_RUNS / f"{name}.json").get("files") or kept.get(name) or any_run


def slow_tests() -> frozenset[str]:
    """Return the tests that start no process and take more than a second, by the figures that are kept."""
    return frozenset(_read(_KEPT).get(_SLOW, ()))


def share_of(
    files: Collection[str], number: int, seconds: Mapping[str, float], count: int | None = None
) -> frozenset[str]:
    """Return the files of one of the shares, which take about the same time and have no file in common.

    Args:
        files: all of them.
        number: of the share, counted on without end: with two shares, 0, 2 and 4 are the same one.
        seconds: that the files take; those that are not known take one.
        count: how many shares there are; None for so many that each takes `SHARE_S`.
    """
    times = {path: seconds.get(path, 1.0) for path in sorted(files)}
    shares = [0.0] * (count or max(1, math.ceil(sum(times.values()) / SHARE_S)))
    found = set()
    for path, value in _longest_first(times):
        smallest = shares.index(min(shares))
        shares[smallest] += value
        if smallest == number % len(shares):
            found.add(path)
    return frozenset(found)


def passed_tests(name: str) -> frozenset[str]:
    """Return the tests that passed in the last run of this name.

    Raises:
        FileNotFoundError: there was no such run.
    """
    return frozenset(json.loads((_RUNS / f"{name}.json").read_text(encoding="utf-8"))["passed"])


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    assert isinstance(found, dict)
    return found


def _table(name: str, seconds_of: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each file of a run, longest first, with the difference from the figure that is kept."""
    kept = kept_times(name)
    for path, seconds in _longest_first(seconds_of):
        if seconds < _SHOWN_S:
            break
        change = f"{seconds - kept[path]:+8.1f}" if path in kept else "     new" if kept else ""
        yield f"{seconds:8.1f} {change} {path}"
    total = f"{sum(seconds_of.values()):.1f} s in {len(seconds_of)} files"
    yield f"{total}; {sum(kept.values()):.1f} s are kept" if kept else total


def _longest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((path, round(value, 1)) for path, value in seconds.items()), key=lambda row: -row[1])


def _keep() -> None:
    kept = _read(_KEPT)
    slow = kept.pop(_SLOW, {})
    for run in sorted(_RUNS.glob("*.json")):
        files, tests = _read(run)["files"], _read(run)["tests"]
        slow = {name: seconds for name, seconds in {**slow, **tests}.items() if seconds > _SLOW_S}
        kept[run.stem] = {path: seconds for path, seconds in files.items() if seconds >= _SHOWN_S}
        print(f"{run.stem}: {sum(files.values()):.0f} s in {len(files)} files")
    kept[_SLOW] = dict(sorted(slow.items()))
    _KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _show() -> None:
    for run in sorted(_RUNS.glob("*.json")):
        print(
            f"== {run.stem}: wall time by file, in seconds", *_table(run.stem, _read(run)["files"]), sep="\n"
        )


if __name__ == "__main__":
    commands = {"keep": _keep, "show": _show}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit("Usage: python tests/times.py keep | show")
    commands[sys.argv[1]]()
