"""The table of all trials, beside MLflow's search of runs on the same numbers.

Both servers get the same runs with four parameters and four metrics. Then a client asks for a page of a hundred: all of
them, filtered, and ordered by a metric; of ours also the first question after a start, which reads the database, and
groups. MLflow as in `bench_master.py`. DET_KERAS_ROWS: with how many trials (10,000 by default, MLflow's part with at
most 10,000); 100,000 take some minutes to write.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

from bench_master import Client, their_python, their_server
from bench_web import our_master
from measure import report, timed
from sqlalchemy import insert, select

from det_keras.home import Home
from det_keras.master import process
from det_keras.master.database.engines.sqlite import SqliteDatabase
from det_keras.master.database.models import ExperimentRow, TaskRow, TrialRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store
from det_keras.master.reports.summary import summarise_all

ROWS = int(os.environ.get("DET_KERAS_ROWS", "10000"))
_MOST_OF_THEIRS = 10_000
_EXPERIMENTS = 20
_TURNS = 5
_PART = 1000
_GOAL = 0.1
_FILTER = "val_accuracy>.9 optimizer=adam"
_QUESTIONS: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "all": ({}, {}),
    "filtered": ({"q": _FILTER}, {"filter": "metrics.val_accuracy > 0.9 and params.optimizer = 'adam'"}),
    "filtered and ordered": (
        {"q": _FILTER, "sort": "-val_accuracy"},
        {
            "filter": "metrics.val_accuracy > 0.9 and params.optimizer = 'adam'",
            "order_by": ["metrics.val_accuracy DESC"],
        },
    ),
    "ordered": ({"sort": "-val_accuracy"}, {"order_by": ["metrics.val_accuracy DESC"]}),
}


def runs(count: int) -> Iterable[tuple[dict[str, object], dict[str, float]]]:
    """Yield the hyperparameters and the metrics of runs."""
    draw = random.Random(5)
    for _ in range(count):
        hparams = {
            "learning_rate": draw.random(),
            "optimizer": draw.choice(["adam", "sgd"]),
            "units": draw.randint(1, 9),
            "dropout": draw.random(),
        }
        yield hparams, {name: draw.random() for name in ("loss", "accuracy", "val_loss", "val_accuracy")}


def fill(home: Home) -> None:
    """Store what so many searches would have stored; the experiments exist."""
    store = Store(SqliteDatabase(home.database), Notifier())
    with store.reading() as session:
        experiments = session.execute(select(ExperimentRow.id, ExperimentRow.job_id)).all()
        (task,) = session.execute(select(TaskRow.__table__).limit(1)).mappings()
        (trial,) = session.execute(select(TrialRow.__table__).limit(1)).mappings()
    rows = []
    for number, (hparams, metrics) in enumerate(runs(ROWS - len(experiments))):
        experiment = experiments[number % len(experiments)]
        values = {name: metrics[name] for name in ("val_loss", "val_accuracy")}
        others = {name: metrics[name] for name in ("loss", "accuracy")}
        rows.append(
            {
                **trial,
                "id": 1_000_000 + number,
                "experiment_id": experiment.id,
                "task_id": f"{experiment.id}.bench-{number}",
                "request_id": f"bench-{number}",
                "state": "COMPLETED",
                "hparams": hparams,
                "summary_metrics": summarise_all([("training", others), ("validation", values)]),
                "searcher_metric_value": metrics["val_loss"],
                "end_time": trial["start_time"] + timedelta(minutes=5),
            }
        )
    for start in range(0, len(rows), _PART):
        part = rows[start : start + _PART]
        with store.writing() as tx:
            tx.execute(insert(TaskRow.__table__), [{**task, "id": row["task_id"]} for row in part])
            tx.execute(insert(TrialRow.__table__), part)
    store.close()


def ours() -> dict[str, float]:
    """Return the seconds of each question to our master."""
    with our_master() as (home, url):
        token = home.token_file.read_text().strip()
        client = Client(int(url.rpartition(":")[2]), {"Authorization": f"Bearer {token}"})
        for number in range(_EXPERIMENTS):
            config = f"name: n{number}\nentrypoint: x\nsearcher: {{name: single, metric: val_loss}}\n"
            client.raw("POST", "/api/v1/experiments", {"config": config, "activate": False})
        fill(home)
        process.stop(home, kill_tasks=True)
        again = Client(
            int(process.start(home, slots=1).url.rpartition(":")[2]), {"Authorization": f"Bearer {token}"}
        )

        def ask(question: dict[str, str]) -> Callable[[], object]:
            return lambda: again.raw("GET", f"/api/v1/trials?{urlencode(question)}")

        found = {"first after a start": timed(ask({}))}
        for name, (question, _) in _QUESTIONS.items():
            found[name] = min(timed(ask(question)) for _ in range(_TURNS))
        found["grouped"] = min(timed(ask({"group": "optimizer"})) for _ in range(_TURNS))
        return found


def theirs(python: str) -> dict[str, float]:
    """Return the seconds of each question to MLflow."""
    with their_server(python) as server:
        client = server.connect()
        api = "/api/2.0/mlflow"
        body = {"experiment_id": "0", "start_time": 0}
        client.call("POST", f"{api}/runs/create", body)
        _fill_theirs(server.database)
        found = {}
        for name, (_, options) in _QUESTIONS.items():
            question = {"experiment_ids": ["0"], "max_results": 100, **options}
            found[name] = min(
                timed(lambda question=question: client.raw("POST", f"{api}/runs/search", question))
                for _ in range(_TURNS)
            )
        return found


def _fill_theirs(database: Path) -> None:
    """Copy the one run that there is, with the parameters and metrics of the others."""
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        connection.row_factory = sqlite3.Row
        run = dict(connection.execute("SELECT * FROM runs").fetchone())
        marks = ", ".join("?" * len(run))
        for number, (hparams, metrics) in enumerate(runs(min(ROWS, _MOST_OF_THEIRS))):
            name = f"{number:032x}"
            connection.execute(f"INSERT INTO runs VALUES ({marks})", [*{**run, "run_uuid": name}.values()])
            connection.executemany(
                "INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)",
                [(key, str(value), name) for key, value in hparams.items()],
            )
            connection.executemany(
                "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, 0, 0, 0, ?)",
                [(key, value, name) for key, value in metrics.items()],
            )


def main() -> None:
    """Measure and print."""
    mine = ours()
    for name, seconds in mine.items():
        report(f"{ROWS:,} trials, {name}", seconds, unit="s")
    python = their_python()
    if python is None:
        print("MLflow is not installed; DET_KERAS_MLFLOW names a Python that has it.")
        return
    for name, seconds in theirs(python).items():
        print(f"MLflow, {min(ROWS, _MOST_OF_THEIRS):,} runs, {name}: {seconds:.3f} s")
        if ROWS <= _MOST_OF_THEIRS:
            detail = f"{mine[name]:.3f} s, MLflow {seconds:.3f} s"
            report(f"table of trials, {name}", mine[name] / seconds, goal=_GOAL, detail=detail)


if __name__ == "__main__":
    main()
