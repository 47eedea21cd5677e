"""What the master does in a second, and an MLflow tracking server on SQLite beside it.

The other side runs where DET_KERAS_MLFLOW names a Python that has MLflow, or this one has it; without, ours runs
alone. Both are asked over HTTP by the same few lines, with kept connections, and answer when a
report is in their database.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from measure import report, timed

from det_keras.home import Home
from det_keras.master import process

ONE_CLIENT_REPORTS = 600
# MLflow does some twenty a second.
THEIR_REPORTS = 100
CLIENTS = 16
EXPERIMENTS = 1000
POINTS = 100_000


class Server(Protocol):
    """A tracking server: what it is asked, in its own words."""

    reports: int

    def new_trial(self, client: Client) -> str:
        """Make what reports belong to."""

    def report(self, client: Client, trial: str, step: int) -> None:
        """Report three metrics of one step."""

    def report_many(self, client: Client, trial: str, count: int) -> None:
        """Report one metric at so many steps, in the fastest way that there is."""

    def new_experiment(self, client: Client, number: int) -> None:
        """Make an experiment."""

    def list_experiments(self, client: Client) -> int:
        """List the experiments; return how many."""

    def read_points(self, client: Client, trial: str) -> int:
        """Read all values of one metric; return how many."""


class Client:
    """A kept connection."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = headers

    def raw(self, method: str, path: str, body: Any = None) -> bytes:
        """Call and return the answer."""
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, content, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call and return the decoded answer."""
        return json.loads(self.raw(method, path, body))


class Ours:
    """The embedded master."""

    reports = ONE_CLIENT_REPORTS
    _config = "name: n{}\nentrypoint: x\nsearcher: {{name: single, metric: loss}}\n"

    def new_trial(self, client: Client) -> str:
        body = {"config": self._config.format(0), "activate": False}
        return str(client.call("POST", "/api/v1/experiments", body)["experiment"]["trialIds"][0])

    def report(self, client: Client, trial: str, step: int) -> None:
        metrics = {"loss": 1 / (step + 1), "accuracy": step * 0.1, "rate": 0.1}
        client.raw("POST", f"/api/v1/trials/{trial}/metrics", self._body(step, metrics))

    def report_many(self, client: Client, trial: str, count: int) -> None:
        for first in range(0, count, 500):
            reports = [self._body(step, {"loss": 1.0}) for step in range(first, min(first + 500, count))]
            client.raw("POST", f"/api/v1/trials/{trial}/metrics/together", {"reports": reports})

    def _body(self, step: int, metrics: dict[str, float]) -> dict[str, Any]:
        sent = {"trialRunId": 0, "stepsCompleted": step, "metrics": {"avgMetrics": metrics}}
        return {"group": "training", "metrics": sent}

    def new_experiment(self, client: Client, number: int) -> None:
        client.raw("POST", "/api/v1/experiments", {"config": self._config.format(number), "activate": False})

    def list_experiments(self, client: Client) -> int:
        return len(client.call("GET", f"/api/v1/experiments?limit={EXPERIMENTS}")["experiments"])

    def read_points(self, client: Client, trial: str) -> int:
        text = client.raw("GET", f"/api/v1/trials/metrics/trial_metrics?group=training&trialIds={trial}")
        return sum(len(json.loads(line)["result"]["metrics"]) for line in text.splitlines())


class MLflow:
    """An MLflow tracking server."""

    reports = THEIR_REPORTS
    _api = "/api/2.0/mlflow"

    def new_trial(self, client: Client) -> str:
        body = {"experiment_id": "0", "start_time": 0}
        return str(client.call("POST", f"{self._api}/runs/create", body)["run"]["info"]["run_id"])

    def report(self, client: Client, trial: str, step: int) -> None:
        self._send(client, trial, [("loss", step), ("accuracy", step), ("rate", step)])

    def report_many(self, client: Client, trial: str, count: int) -> None:
        for first in range(0, count, 1000):
            self._send(client, trial, [("loss", step) for step in range(first, first + 1000)])

    def _send(self, client: Client, trial: str, points: list[tuple[str, int]]) -> None:
        metrics = [
            {"key": key, "value": step * 0.1, "timestamp": 1000 + step, "step": step} for key, step in points
        ]
        client.raw("POST", f"{self._api}/runs/log-batch", {"run_id": trial, "metrics": metrics})

    def new_experiment(self, client: Client, number: int) -> None:
        client.raw("POST", f"{self._api}/experiments/create", {"name": f"n{number}"})

    def list_experiments(self, client: Client) -> int:
        body = {"max_results": EXPERIMENTS}
        return len(client.call("POST", f"{self._api}/experiments/search", body)["experiments"])

    def read_points(self, client: Client, trial: str) -> int:
        path = f"{self._api}/metrics/get-history?run_id={trial}&metric_key=loss&max_results=25000"
        count, token = 0, ""
        while True:
            answer = client.call("GET", path + (f"&page_token={token}" if token else ""))
            count += len(answer.get("metrics", ()))
            token = answer.get("next_page_token", "")
            if not token:
                return count


@contextmanager
def our_server() -> Iterator[Callable[[], Client]]:
    """Run a master and yield what connects to it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        running = process.start(home, slots=1)
        headers = {"Authorization": f"Bearer {home.token_file.read_text()}"}
        port = int(running.url.rpartition(":")[2])
        try:
            yield lambda: Client(port, headers)
        finally:
            process.stop(home, kill_tasks=True)


def their_python() -> str | None:
    """Return a Python that has MLflow."""
    named = os.environ.get("DET_KERAS_MLFLOW")
    return named or (sys.executable if importlib.util.find_spec("mlflow") else None)


@dataclass(frozen=True)
class TheirServer:
    """An MLflow server that runs.

    Attributes:
        port: on loopback.
        database: its SQLite file.
    """

    port: int
    database: Path

    def connect(self) -> Client:
        """Open a connection of its own."""
        return Client(self.port, {"Content-Type": "application/json"})


@contextmanager
def their_server(python: str, url: str | None = None) -> Iterator[TheirServer]:
    """Run an MLflow server on SQLite, or on the database at `url`."""
    with tempfile.TemporaryDirectory() as folder, closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        database = Path(folder) / "mlflow.db"
        options = [
            "--backend-store-uri",
            url or f"sqlite:///{database}",
            "--port",
            str(port),
            "--workers",
            "1",
        ]
        server = subprocess.Popen(
            [python, "-m", "mlflow", "server", *options],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 400
            while True:
                try:
                    Client(port, {}).raw("GET", "/health")
                    break
                except (OSError, http.client.HTTPException, AssertionError):
                    assert time.monotonic() < deadline
                    assert server.poll() is None
                    time.sleep(0.2)
            yield TheirServer(port, database)
        finally:
            os.killpg(server.pid, 15)
            server.wait(30)


def at_once(count: int, work: Callable[[int], None]) -> float:
    """Do work in so many threads; return the seconds until all are done."""
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]

    def run() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return timed(run)


def from_one_client(server: Server, connect: Callable[[], Client]) -> list[float]:
    """Return how long each of a row of reports took."""
    client = connect()
    trial = server.new_trial(client)
    for step in range(10):
        server.report(client, trial, step)
    return [timed(lambda s=step: server.report(client, trial, s)) for step in range(10, 10 + server.reports)]


def from_many_clients(server: Server, connect: Callable[[], Client]) -> float:
    """Return how many reports a second many clients get stored together."""
    clients = [connect() for _ in range(CLIENTS)]
    trials = [server.new_trial(client) for client in clients]
    each = max(5, server.reports // 4)

    def work(index: int) -> None:
        for step in range(each):
            server.report(clients[index], trials[index], step)

    return CLIENTS * each / at_once(CLIENTS, work)


def percentile(values: list[float], share: float) -> float:
    """Return the value that a share of all is at most."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(server: Server, connect: Callable[[], Client], points: int) -> dict[str, float]:
    """Return what a server does."""
    seconds = from_one_client(server, connect)
    client = connect()
    many = from_many_clients(server, connect)
    trial = server.new_trial(client)
    for number in range(1, EXPERIMENTS):
        server.new_experiment(client, number)
    assert server.list_experiments(client) == EXPERIMENTS
    listing = statistics.median(timed(lambda: server.list_experiments(client)) for _ in range(3))
    server.report_many(client, trial, points)
    assert server.read_points(client, trial) == points
    return {
        "per_second": len(seconds) / sum(seconds),
        "p99_ms": 1000 * percentile(seconds, 0.99),
        "p50_ms": 1000 * percentile(seconds, 0.5),
        "many_per_second": many,
        "listing_s": listing,
        "reading_s": statistics.median(timed(lambda: server.read_points(client, trial)) for _ in range(3)),
    }


def main() -> None:
    """Measure both sides and report the ratios."""
    points = int(os.environ.get("DET_KERAS_POINTS", POINTS))
    with our_server() as connect:
        ours = measure(Ours(), connect, points)
    alone = f"{ours['per_second']:.0f} a second, half within {ours['p50_ms']:.1f} ms"
    report("a report is acknowledged by our master, p99", ours["p99_ms"], unit="ms", goal=10, detail=alone)
    report("2 ms, above what our master takes for a report", 500 / ours["per_second"], goal=1.0, detail=alone)
    python = their_python()
    if python is None:
        report(
            "reports from 16 clients, per second",
            ours["many_per_second"],
            unit="1/s",
            detail="no MLflow here",
        )
        report(f"listing {EXPERIMENTS} experiments", ours["listing_s"], unit="s")
        report(f"reading {points} points", ours["reading_s"], unit="s")
        return
    with their_server(python) as server:
        theirs = measure(MLflow(), server.connect, points)
    for name, key, is_rate, goal in (
        ("a report from one client", "per_second", True, 1.0),
        ("p99 of a report", "p99_ms", False, 1.0),
        (f"a report from {CLIENTS} clients", "many_per_second", True, 1.0),
        (f"listing {EXPERIMENTS} experiments", "listing_s", False, 0.5),
        (f"reading {points} points", "reading_s", False, 1.0),
    ):
        ratio = theirs[key] / ours[key] if is_rate else ours[key] / theirs[key]
        detail = (
            f"ours {ours[key]:.3g}, MLflow {theirs[key]:.3g} {'a second' if is_rate else key[-2:].strip('_')}"
        )
        report(f"{name}, ours / MLflow, time", ratio, goal=goal, detail=detail)


if __name__ == "__main__":
    main()
