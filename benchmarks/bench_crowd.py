"""What others have of a master while somebody occupies it: wide searches, silent connections, wrong passwords, a crowd.

The master is a process of its own with `ulimit -n 1024`, the usual limit. A trial of it reports all the time, with its
own token, and measures its calls. Then one thing after another is done to the master, and all of them at once for
`DET_KERAS_MINUTES` minutes (3): the table of `docs/reliability.md` is what this prints, after an hour.

`DET_KERAS_DB` names another database than SQLite, which has to be empty.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from bench_master import Client, percentile
from measure import report

from det_keras.home import Home
from det_keras.launch.importable import importable
from det_keras.master import process

MINUTES = float(os.environ.get("DET_KERAS_MINUTES", "3"))
KILLS = (1_000, 10_000, 100_000)
SILENT, CLIENTS, CALLS = 1_000, 200, 20
FILES = (64, 1024)
_WIDE = """
name: wide {0}
entrypoint: sleep 100000
searcher: {{name: grid, metric: loss, max_concurrent_trials: 0}}
hyperparameters: {{x: {{type: int, minval: 1, maxval: {0}, count: {0}}}}}
"""
_REPORTER = """
name: reporter
entrypoint: python3 reporter.py
searcher: {name: single, metric: loss}
resources: {slots_per_trial: 0}
max_restarts: 0
"""
# Reports as a script does, over its connection, and writes down how long each call took.
_SCRIPT = """
import http.client, json, os, time, urllib.parse
url = urllib.parse.urlsplit(os.environ["DET_MASTER"])
trial, run = os.environ["DET_TRIAL_ID"], int(os.environ["DET_TRIAL_RUN_ID"])
headers = {"Authorization": "Bearer " + os.environ["DET_SESSION_TOKEN"]}
connection, step = None, 0
with open(os.environ["TIMES"], "w", buffering=1) as times:
    while True:
        step += 1
        metrics = {"trialRunId": run, "stepsCompleted": step, "metrics": {"avgMetrics": {"loss": 1 / step}}}
        body = json.dumps({"group": "training", "metrics": metrics})
        while True:
            begun = time.monotonic()
            try:
                connection = connection or http.client.HTTPConnection(url.hostname, url.port, timeout=60)
                connection.request("POST", f"/api/v1/trials/{trial}/metrics", body, headers)
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (OSError, http.client.HTTPException):
                connection, status = None, 0
            times.write(f"{time.monotonic()} {time.monotonic() - begun} {status}\\n")
            if status == 200:
                break
            time.sleep(0.05)
        time.sleep(0.02)
"""


class Master:
    """A master with a trial that reports."""

    def __init__(self, folder: Path, files: int) -> None:
        self.home = Home(folder / "home").create()
        command = f'ulimit -Sn {files}; ulimit -Hn {files}; exec "{sys.executable}" -m det_keras.master'
        with self.home.master_log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", f'{command} --home "{self.home.root}" --port 0 --slots 1'],
                env=importable(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while (found := process.find(self.home)) is None:
            assert self._process.poll() is None, self.home.master_log.read_text()
            time.sleep(0.05)
        self.port = int(found.url.rpartition(":")[2])
        self.process = psutil.Process(self._process.pid)
        self.headers = {"Authorization": f"Bearer {self.home.token_file.read_text()}"}
        self.times = folder / "times"
        self.trial_id = self._start_reporter(folder)

    def client(self) -> Client:
        return Client(self.port, self.headers)

    def reports(self, since: float) -> list[tuple[float, int]]:
        """Return duration and status of each call of the trial since a moment."""
        rows = [line.split() for line in self.times.read_text().splitlines()[:-1]]
        return [(float(took), int(status)) for at, took, status in rows if float(at) >= since]

    def stored_reports(self) -> int:
        path = f"/api/v1/trials/metrics/trial_metrics?group=training&trialIds={self.trial_id}"
        lines = self.client().raw("GET", path).splitlines()
        return sum(len(json.loads(line)["result"]["metrics"]) for line in lines)

    def close(self) -> None:
        process.stop(self.home, kill_tasks=True)
        self._process.wait()

    def _start_reporter(self, folder: Path) -> int:
        script = folder / "reporter.py"
        script.write_text(_SCRIPT)
        config = _REPORTER + f"environment: {{environment_variables: ['TIMES={self.times}']}}\n"
        body = {"config": config.replace("reporter.py", str(script)), "activate": True}
        trial_id = self.client().call("POST", "/api/v1/experiments", body)["experiment"]["trialIds"][0]
        while not (self.times.exists() and self.times.read_text().count("\n") > 20):
            time.sleep(0.1)
        return int(trial_id)


@contextlib.contextmanager
def running(files: int) -> Iterator[Master]:
    with tempfile.TemporaryDirectory(prefix="det-crowd-", ignore_cleanup_errors=True) as folder:
        master = Master(Path(folder), files)
        try:
            yield master
        finally:
            master.close()


@contextlib.contextmanager
def meanwhile(*actions: Callable[[], object]) -> Iterator[None]:
    """Repeat actions on threads of their own until the block ends."""
    is_over = threading.Event()

    def repeat(action: Callable[[], object]) -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
                action()

    threads = [threading.Thread(target=repeat, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def kill(master: Master, count: int) -> tuple[float, float]:
    """Return how long a search of so many trials takes to be killed, and the worst write of another user."""
    client, other = master.client(), master.client()
    body = {"config": _WIDE.format(count), "activate": True}
    experiment_id = client.call("POST", "/api/v1/experiments", body)["experiment"]["id"]
    written: list[float] = []

    def write() -> None:
        begun = time.monotonic()
        other.raw("PATCH", "/api/v1/experiments/1", {"notes": str(begun)})
        written.append(time.monotonic() - begun)
        time.sleep(0.02)

    with meanwhile(write):
        time.sleep(0.5)
        begun = time.monotonic()
        client.raw("POST", f"/api/v1/experiments/{experiment_id}/kill")
        path = f"/api/v1/experiments/{experiment_id}"
        while client.call("GET", path)["experiment"]["state"] != "STATE_CANCELED":
            time.sleep(0.01)
        took = time.monotonic() - begun
        time.sleep(0.2)
    return took, max(written, default=0.0)


def list_with(master: Master, tries: int = 20) -> list[float]:
    """Return how long a user's calls take, each over a connection of its own."""
    seconds = []
    for _ in range(tries):
        begun = time.monotonic()
        master.client().raw("GET", "/api/v1/experiments?limit=1")
        seconds.append(time.monotonic() - begun)
    return seconds


def silent(master: Master, text: bytes) -> list[float]:
    """Return how long a user's calls take while connections say nothing more than `text`."""
    connections = []
    for _ in range(SILENT):
        with contextlib.suppress(OSError):
            connections.append(socket.create_connection(("127.0.0.1", master.port), timeout=5))
            connections[-1].sendall(text)
    try:
        return list_with(master)
    finally:
        for connection in connections:
            connection.close()


def wrong_login(master: Master) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", master.port, timeout=60)
    with contextlib.closing(connection):
        body = json.dumps({"username": "determined", "password": "wrong", "isHashed": False})
        connection.request("POST", "/api/v1/auth/login", body)
        return connection.getresponse().status


def crowd(master: Master) -> collections.Counter[int]:
    """Return the answers to many clients that call at once; 0 for a closed connection."""
    statuses: collections.Counter[int] = collections.Counter()
    lock = threading.Lock()

    def call() -> None:
        for _ in range(CALLS):
            status = 0
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", master.port, timeout=60)
                with contextlib.closing(connection):
                    connection.request("GET", "/api/v1/experiments?limit=1", headers=master.headers)
                    status = connection.getresponse().status
            with lock:
                statuses[status] += 1

    threads = [threading.Thread(target=call) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def one_after_another(master: Master) -> None:
    for count in KILLS:
        took, worst = kill(master, count)
        goal = 5.0 if count == 10_000 else None
        report(
            f"kill of {count} trials",
            took,
            unit="s",
            goal=goal,
            detail=f"worst write of others {worst:.2f} s",
        )
    alone = percentile(list_with(master), 0.99)
    for name, text in (("silent", b""), ("half a head", b"GET /info HTTP/1.1\r\nX-A: ")):
        worst = max(silent(master, text))
        report(f"a call beside {SILENT} connections, {name}", worst, unit="s", detail=f"alone {alone:.3f} s")
    statuses: collections.Counter[int] = collections.Counter()

    def guess() -> None:
        statuses[wrong_login(master)] += 1
        time.sleep(0.1)

    with meanwhile(*[guess] * 6):
        worst = percentile(list_with(master, 100), 0.99)
    report(
        "a call beside 60 wrong logins a second", worst, unit="s", detail=f"their answers: {dict(statuses)}"
    )


def all_at_once(master: Master) -> None:
    since = time.monotonic()
    time.sleep(10)
    alone = percentile([took for took, _ in master.reports(since)], 0.99)
    memory, files = master.process.memory_info().rss, master.process.num_fds()
    since = time.monotonic()
    statuses: collections.Counter[int] = collections.Counter()

    def guess() -> None:
        wrong_login(master)
        time.sleep(0.1)

    actions = (
        lambda: kill(master, 2_000),
        lambda: silent(master, b""),
        lambda: silent(master, b"GET /info HTTP/1.1\r\nX-A: "),
        lambda: statuses.update(crowd(master)),
        *[guess] * 6,
    )
    with meanwhile(*actions):
        time.sleep(60 * MINUTES)
    calls = master.reports(since)
    crowded = percentile([took for took, _ in calls], 0.99)
    time.sleep(2)
    acknowledged = sum(status == 200 for _, status in master.reports(0))
    faults = sum(count for status, count in statuses.items() if status >= 500 and status != 503)
    name = f"p99 of a report in {MINUTES:g} minutes of all at once"
    report(name, crowded, unit="s", goal=0.1, detail=f"alone {alone:.3f} s, {len(calls)} reports")
    report(
        "reports that were acknowledged and are not there",
        float(max(0, acknowledged - master.stored_reports())),
        unit="reports",
        goal=0,
    )
    report("answers of 5xx but 503", float(faults), unit="answers", goal=0, detail=str(dict(statuses)))
    grown = (master.process.memory_info().rss - memory) / 2**20
    report("memory that the master grew by", grown, unit="MiB", detail=f"from {memory / 2**20:.0f} MiB")
    report("files open afterwards", float(master.process.num_fds()), unit="files", detail=f"before {files}")
    report("log of the master", master.home.master_log.stat().st_size / 2**10, unit="KiB")


def main() -> None:
    """Print what others have of an occupied master."""
    for files in FILES:
        with running(files) as master:
            begun = time.monotonic()
            statuses = crowd(master)
            detail = f"{dict(statuses)} in {time.monotonic() - begun:.0f} s"
            wrong = sum(count for status, count in statuses.items() if status not in (200, 503))
            report(
                f"wrong answers to {CLIENTS} clients, {files} files",
                float(wrong),
                unit="answers",
                goal=0,
                detail=detail,
            )
            if files == FILES[-1]:
                one_after_another(master)
                all_at_once(master)


if __name__ == "__main__":
    main()
