"""The master on PostgreSQL, beside one on SQLite, and beside an MLflow server on the same PostgreSQL.

The PostgreSQL server is one of its own with default settings, so that a commit waits for the disk on all sides
(`tests/database/install.sh` installs it). MLflow runs where DET_KERAS_MLFLOW names a Python that has it and psycopg2.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from bench_master import (
    EXPERIMENTS,
    Client,
    MLflow,
    Ours,
    Server,
    at_once,
    their_python,
    their_server,
)
from measure import in_turns, report
from sqlalchemy import insert, select, update

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from database.server import PostgresServer, changing, running

from det_keras.home import Home
from det_keras.master import process
from det_keras.master.database.models import MetricRow, TrialRow

POINTS = int(os.environ.get("DET_KERAS_POINTS", "100000"))
TURNS = 7
# More than 15 at once exhaust the connections of MLflow to its database.
CLIENTS = 12
EACH, THEIR_EACH = 360, 36


class Side:
    """One server, and the trials to which its clients report."""

    def __init__(self, server: Server, port: int, headers: dict[str, str], each: int) -> None:
        self.server = server
        self.each = each
        self._connect = functools.partial(Client, port, headers)
        self.client = self._connect()
        self._trials = [server.new_trial(self.client) for _ in range(CLIENTS)]
        self._steps = itertools.count(1)

    def send(self, clients: int) -> None:
        """Report `each` times from so many clients at once."""
        steps = [next(self._steps) for _ in range(self.each // clients)]

        def work(index: int) -> None:
            # A new connection: MLflow closes those that wait for their turn.
            client = self._connect()
            for step in steps:
                self.server.report(client, self._trials[index], step)

        at_once(clients, work)


def fill(home: Home) -> list[int]:
    """Store experiments, and as many curves as there are turns; return the trials of the curves."""
    with serving(home) as side:
        for number in range(CLIENTS, EXPERIMENTS):
            side.server.new_experiment(side.client, number)
    with changing(home) as connection:
        trials = connection.execute(select(TrialRow.id, TrialRow.start_time).limit(TURNS)).all()
        for trial_id, started in trials:
            rows = [
                {
                    "trial_id": trial_id, "run_id": 0, "group": "training", "partition": "training",
                    "total_batches": step, "archived": False, "end_time": started + timedelta(seconds=step),
                    "metrics": {"loss": 1 / (step + 1), "accuracy": step * 0.1, "rate": 0.1},
                }
                for step in range(POINTS)
            ]  # fmt: skip
            connection.execute(insert(MetricRow), rows)
            summary = {"count": POINTS, "last": 0.1, "max": 1.0, "min": 0.0, "sum": 1.0, "type": "number"}
            values = {"summary_metrics": {"avg_metrics": {"loss": summary}}, "total_batches": POINTS}
            connection.execute(update(TrialRow).where(TrialRow.id == trial_id).values(values))
    return [trial_id for trial_id, _ in trials]


@contextlib.contextmanager
def serving(home: Home) -> Iterator[Side]:
    """Run a master of a data root."""
    found = process.start(home, slots=1)
    try:
        headers = {"Authorization": f"Bearer {home.token_file.read_text()}"}
        yield Side(Ours(), int(found.url.rpartition(":")[2]), headers, EACH)
    finally:
        process.stop(home, kill_tasks=True)


def measure(names: list[str], sides: list[Side], trials: list[list[int]]) -> None:
    """Compare reading."""

    def details(seconds: list[float]) -> str:
        return "; ".join(f"{name}: {value:.3f} s" for name, value in zip(names, seconds, strict=True))

    def listing(side: Side) -> None:
        assert side.server.list_experiments(side.client) == EXPERIMENTS

    def points(side: Side, trial: int) -> None:
        assert side.server.read_points(side.client, str(trial)) == POINTS

    def curve(side: Side, left: Iterator[int]) -> None:
        # Each trial once: the master remembers its curve.
        path = f"/api/v1/trials/time-series?trialIds={next(left)}&metricNames=loss&group=training"
        assert side.client.call("GET", path)["trials"][0]["metrics"][0]["data"]

    for what, actions in (
        (f"listing {EXPERIMENTS} experiments", [functools.partial(listing, side) for side in sides]),
        (
            f"reading {POINTS} points",
            [functools.partial(points, s, t[0]) for s, t in zip(sides, trials, strict=True)],
        ),
        (
            f"a curve of {POINTS} points",
            [functools.partial(curve, s, iter(t)) for s, t in zip(sides, trials, strict=True)],
        ),
    ):
        seconds = in_turns(TURNS, *actions)
        report(f"{what}, PostgreSQL / SQLite", seconds[0] / seconds[1], goal=1.2, detail=details(seconds))


def measure_reports(names: list[str], sides: list[Side]) -> None:
    """Compare reports a second."""
    for clients in (1, CLIENTS):
        for side in sides:
            side.send(clients)
        seconds = in_turns(5, *(functools.partial(side.send, clients) for side in sides))
        rates = [side.each / value for side, value in zip(sides, seconds, strict=True)]
        detail = "; ".join(f"{name}: {rate:.0f}/s" for name, rate in zip(names, rates, strict=True))
        report(
            f"time of a report, PostgreSQL / SQLite ({clients} clients)", rates[1] / rates[0], detail=detail
        )
        if len(sides) > 2:
            ratio = rates[2] / rates[0]
            report(
                f"time of a report, ours / MLflow on PostgreSQL ({clients} clients)",
                ratio,
                goal=0.1,
                detail=detail,
            )


def main(server: PostgresServer) -> None:
    """Measure."""
    with contextlib.ExitStack() as stack:
        homes = [Home(Path(stack.enter_context(tempfile.TemporaryDirectory()))) for _ in range(2)]
        process.remember(homes[0].create(), process.MasterOptions(db=server.url(server.create())))
        trials = [fill(home) for home in homes]
        server.sql("VACUUM ANALYZE", server.name_of(process.database_url(homes[0], {})))
        sides = [stack.enter_context(serving(home)) for home in homes]
        names = ["PostgreSQL", "SQLite"]
        measure(names, sides, trials)
        python = their_python()
        if python is None:
            print("database: no MLflow here; DET_KERAS_MLFLOW names a Python that has it.", file=sys.stderr)
        else:
            server.sql("CREATE ROLE mlflow SUPERUSER LOGIN PASSWORD 'mlflow'")
            # Without the characters that a URL must quote, which MLflow does not read.
            url = f"postgresql+psycopg2://mlflow:mlflow@127.0.0.1:{server.port}/{server.create()}"
            theirs = stack.enter_context(their_server(python, url))
            sides.append(Side(MLflow(), theirs.port, {"Content-Type": "application/json"}, THEIR_EACH))
            names.append("MLflow")
        measure_reports(names, sides)


if __name__ == "__main__":
    with running(is_durable=True) as found:
        if found is None:
            sys.exit("database: needs a PostgreSQL server (tests/database/install.sh).")
        main(found)
