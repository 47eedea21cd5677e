"""Long logs and many reports: what a line and a report cost, and what does not depend on their number.

A master stores a log of `DET_KERAS_LINES` lines (a million) and the reports of a script of `det.core`, which makes
`DET_KERAS_REPORTS` (50,000) as fast as it can; the script itself tells when all of them had arrived. The same with a
log of a thousand lines and with three hundred reports is the other side.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from bench_master import Client, Ours
from measure import report, timed

from det_keras.home import Home
from det_keras.master import process
from det_keras.protocol.values import now, timestamp

LINES = int(os.environ.get("DET_KERAS_LINES", "1000000"))
REPORTS = int(os.environ.get("DET_KERAS_REPORTS", "50000"))
FEW_LINES, FEW_REPORTS = 1000, 300
TURNS = 5
_EACH = 1000
_SCRIPT = """
import sys, time
import det_keras as det
with det.core.init() as core:
    begun = time.monotonic()
    for step in range(1, {count} + 1):
        core.train.report_{group}_metrics(step, {{"loss": 1 / step, "acc": 0.5}})
print("ARRIVED", time.monotonic() - begun)
"""
_CONFIG = """
name: long
entrypoint: python3 script.py
searcher: {name: single, metric: loss}
resources: {slots_per_trial: 0}
"""


class Terminal:
    """The command line, and a connection to the master that it speaks with."""

    def __init__(self, home: Home, url: str) -> None:
        self._environment = {**os.environ, "DET_KERAS_HOME": str(home.root)}
        token = home.token_file.read_text()
        self.client = Client(int(url.rpartition(":")[2]), {"Authorization": f"Bearer {token}"})

    def det(self, *arguments: str) -> bytes:
        """Run a command and return what it prints."""
        command = [sys.executable, "-m", "det_keras", *arguments]
        return subprocess.run(command, env=self._environment, check=True, stdout=subprocess.PIPE).stdout

    def log(self, lines: int) -> str:
        """Return a trial with a log of so many lines."""
        trial = Ours().new_trial(self.client)
        task = self.client.call("GET", f"/api/v1/trials/{trial}")["trial"]["taskId"]
        begun = now() - timedelta(days=1)
        for first in range(0, lines, _EACH):
            entries = [
                {
                    "taskId": task,
                    "timestamp": timestamp(begun + timedelta(milliseconds=number)),
                    "log": f"line {number} of the log\n",
                }
                for number in range(first, min(first + _EACH, lines))
            ]
            self.client.raw("POST", "/api/v1/task/logs", {"logs": entries})
        return trial

    def reports(self, group: str, count: int, folder: Path) -> tuple[str, float]:
        """Run a script that makes so many reports; return its experiment, and how long all took to arrive."""
        folder.mkdir()
        (folder / "script.py").write_text(_SCRIPT.format(group=group, count=count))
        (folder / "config.yaml").write_text(_CONFIG)
        printed = self.det("experiment", "create", str(folder / "config.yaml"), str(folder))
        number = re.search(rb"experiment (\d+)", printed)[1].decode()  # type: ignore[index]
        self.det("experiment", "wait", number)
        arrived = re.search(rb"ARRIVED ([\d.]+)", self.det("experiment", "logs", number))
        assert arrived is not None
        return number, float(arrived[1])


@contextmanager
def running() -> Iterator[tuple[Terminal, Path]]:
    """Run a master; yield a command line for it and a folder."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home").create()
        command = [sys.executable, "-m", "det_keras.master", "--home", str(home.root), "--slots", "1"]
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while (found := process.find(home)) is None:
                assert child.poll() is None, "The master did not start."
                time.sleep(0.05)
            yield Terminal(home, found.url), Path(folder)
        finally:
            child.terminate()
            child.wait()


def compare(name: str, long: list[str], short: list[str], terminal: Terminal, *, goal: float) -> None:
    """Report the ratio of two commands, in turns."""
    pairs = [(timed(lambda: terminal.det(*long)), timed(lambda: terminal.det(*short))) for _ in range(TURNS)]
    ratio = statistics.median(one / other for one, other in pairs)
    detail = f"{statistics.median(one for one, _ in pairs) * 1000:.0f} ms"
    report(name, ratio, goal=goal, detail=detail)


def logs(terminal: Terminal) -> None:
    """Measure how a log is printed."""
    trial, short = terminal.log(LINES), terminal.log(FEW_LINES)
    begun = time.perf_counter()
    printed = terminal.det("trial", "logs", trial)
    seconds = time.perf_counter() - begun
    assert printed.count(b"\n") == LINES
    # Not above 1 is fast enough.
    report(
        f"`det trial logs` of {LINES} lines: beside 50,000 lines a second",
        seconds * 50_000 / LINES,
        goal=1.0,
        detail=f"{LINES / seconds:.0f} lines/s",
    )
    commands = [["trial", "logs", one, "--tail", "3"] for one in (trial, short)]
    compare(f"`--tail 3` of {LINES} lines, and of {FEW_LINES}", *commands, terminal, goal=1.2)


def reports(terminal: Terminal, folder: Path) -> None:
    """Measure how reports arrive, and what is printed of them."""
    few, _ = terminal.reports("training", FEW_REPORTS, folder / "few")
    for group, count, a_second in (("training", REPORTS, 5000), ("validation", REPORTS // 20, None)):
        number, seconds = terminal.reports(group, count, folder / group)
        if a_second is None:
            report(f"reports of {group} a second, {count} of one script", count / seconds, unit="/s")
            continue
        report(
            f"{count} reports of {group} by one script: beside {a_second} a second",
            seconds * a_second / count,
            goal=1.0,
            detail=f"{count / seconds:.0f}/s",
        )
        commands = [["experiment", "describe", one] for one in (number, few)]
        compare(f"`describe` of {count} reports, and of {FEW_REPORTS}", *commands, terminal, goal=1.2)


def main() -> None:
    """Measure."""
    with running() as (terminal, folder):
        logs(terminal)
        reports(terminal, folder)


if __name__ == "__main__":
    main()
