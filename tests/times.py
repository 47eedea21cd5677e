"""The wall time of each test file: printed at the end of a run, kept for the next one, and used to order the files.

A run writes what it measured to ``build/test-times/NAME.json``, where NAME is that of the tox environment. ``python
tests/times.py keep`` copies the figures of these runs to ``benchmarks/test_times.json``, which is in the repository. At
the end of a run each file is shown beside the figure that is kept, so a change shows what it adds.

The order of the files follows from the figures, too: processes that share the tests file by file begin with the longest
and end with short ones, so that none is left with minutes of work alone.

The times of one file add up, whichever process of the run it was in. With two processes the run takes about half of the
sum.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Times", "kept_times", "last_times", "passed_tests"]

_ROOT = Path(__file__).resolve().parents[1]
_KEPT = _ROOT / "benchmarks" / "test_times.json"
_RUNS = _ROOT / "build" / "test-times"
#: Shorter files are not shown, and keep their order.
_SHOWN_S = 1.0


class Times:
    """A plugin of pytest that measures, prints and stores the times.

    Args:
        name: of the run.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._seconds: dict[str, float] = defaultdict(float)
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of the setup, the call or the teardown of a test to that of its file."""
        # With `--dist loadgroup` a test's name ends with its group.
        name = report.nodeid.partition("@")[0]
        self._seconds[name.partition("::")[0]] += report.duration
        if report.when == "call" or report.outcome != "passed":
            # A failure of the teardown replaces a success of the call.
            self._outcomes[name] = report.outcome

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the times of the files, longest first."""
        if not self._outcomes:
            return
        kept = kept_times(self._name)
        terminalreporter.section("wall time by file, in seconds")
        for path, seconds in _longest_first(self._seconds):
            if seconds < _SHOWN_S:
                break
            change = f"{seconds - kept[path]:+8.1f}" if path in kept else "     new" if kept else ""
            terminalreporter.write_line(f"{seconds:8.1f} {change} {path}")
        total = f"{sum(self._seconds.values()):.1f} s in {len(self._seconds)} files"
        terminalreporter.write_line(f"{total}; {sum(kept.values()):.1f} s are kept" if kept else total)

    def pytest_sessionfinish(self) -> None:
        """Store the times, and the tests that passed."""
        if not self._outcomes:
            return
        _RUNS.mkdir(parents=True, exist_ok=True)
        passed = sorted(name for name, outcome in self._outcomes.items() if outcome == "passed")
        path = _RUNS / f"{self._name}.json"
        # A run of a part does not remove what is known of the others.
        files = {**_read(path).get("files", {}), **self._seconds}
        content = {"files": dict(_longest_first(files)), "passed": passed}
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def kept_times(name: str) -> dict[str, float]:
    """Return the seconds of each file, from the root of the repository, that are kept for a run; empty if none are."""
    return _read(_KEPT).get(name, {})


def last_times(name: str) -> dict[str, float]:
    """Return the seconds of each file in the last run of this name, else those that are kept for it or for any run."""
    kept = _read(_KEPT)
    any_run = {path: seconds for files in kept.values() for path, seconds in files.items()}
    return _read(_RUNS / f"{name}.json").get("files") or kept.get(name) or any_run


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


def _longest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((path, round(value, 1)) for path, value in seconds.items()), key=lambda row: -row[1])


def _keep() -> None:
    kept = _read(_KEPT)
    for run in sorted(_RUNS.glob("*.json")):
        files = _read(run)["files"]
        kept[run.stem] = {path: seconds for path, seconds in files.items() if seconds >= _SHOWN_S}
        print(f"{run.stem}: {sum(files.values()):.0f} s in {len(files)} files")
    _KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["keep"]:
        sys.exit("Usage: python tests/times.py keep")
    _keep()
