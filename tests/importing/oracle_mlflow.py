"""A store that MLflow writes, read by MLflow and by `det_keras.importing.mlflow`.

    python oracle_mlflow.py DIR files|database

prints the differences, one per line, or a sentence if there are none.
"""

from __future__ import annotations

import math
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

from det_keras.importing import mlflow as ours
from det_keras.importing.base import group_of


def _write(mlflow, uri: str) -> None:
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("größe")
    with mlflow.start_run(run_name="first", tags={"team": "vision"}, description="A note."):
        mlflow.log_params(
            {"learning_rate": 0.01, "optimizer": "adam", "layers.units": 32, "flag": True, "none": None}
        )
        for step in range(20):
            mlflow.log_metrics(
                {"loss": 1 / (step + 1), "val_loss": 2 / (step + 1), "train/a.b": step / 10}, step=step
            )
        for value in (math.nan, math.inf, -math.inf):
            mlflow.log_metric(f"is {value}", value, step=3)
        # The last one counts.
        mlflow.log_metric("loss", 9.0, step=1)
        mlflow.log_metric("loss", 8.0, step=-2)
    try:
        with mlflow.start_run(run_name="failed"):
            raise RuntimeError
    except RuntimeError:
        pass
    killed = mlflow.start_run(run_name="killed")
    mlflow.end_run("KILLED")
    mlflow.start_run(run_name="deleted")
    mlflow.end_run()
    mlflow.delete_run(mlflow.last_active_run().info.run_id)
    assert killed.info.run_id


def differences(folder: Path, kind: str) -> list[str]:
    """Return what is read otherwise than by MLflow."""
    # It has warned of its file store since 3.14.
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    store = folder / ("mlruns" if kind == "files" else "mlflow.db")
    uri = store.as_uri() if kind == "files" else f"sqlite:///{store}"
    _write(mlflow, uri)
    client = mlflow.MlflowClient(uri)
    theirs = {
        run.info.run_id: run
        for run in client.search_runs([each.experiment_id for each in client.search_experiments()])
    }
    found = {run.id: run.read() for run in ours.find(store, None, datetime.now(timezone.utc))}
    lines = [] if found.keys() == theirs.keys() else [f"runs: {sorted(found)} {sorted(theirs)}"]
    for run_id, run in found.items():
        their_run = theirs[run_id]
        info = their_run.info
        states = {"FINISHED": "COMPLETED", "FAILED": "ERROR", "KILLED": "CANCELED"}
        pairs = {
            "name": (run.name, info.run_name),
            "project": (run.project, client.get_experiment(info.experiment_id).name),
            "state": (run.state, states[info.status]),
            "start": (round(run.started.timestamp() * 1000), info.start_time),
            "end": (round(run.ended.timestamp() * 1000), info.end_time),
            "params": ({name: str(value) for name, value in run.hparams.items()}, their_run.data.params),
            "notes": (run.notes, their_run.data.tags.get("mlflow.note.content", "")),
            "metrics": (_ours(run), _theirs(client, run_id, their_run.data.metrics)),
        }
        lines += [f"{run.name} {name}: {a} {b}" for name, (a, b) in pairs.items() if a != b]
    return lines


def _ours(run) -> dict[tuple[str, int], tuple[str, int]]:
    points = {}
    for group, table in run.tables.items():
        for name, column in table.metrics.items():
            assert group == group_of(name)
            where = slice(None) if column.rows is None else column.rows
            for step, value in zip(table.steps[where].tolist(), column.values.tolist(), strict=True):
                points[name, step] = str(value)
    return points


def _theirs(client, run_id: str, names) -> dict[tuple[str, int], str]:
    points = {}
    for name in names:
        for point in sorted(client.get_metric_history(run_id, name), key=lambda point: point.timestamp):
            # A database has no infinities.
            value = math.copysign(math.inf, point.value) if abs(point.value) > 1e308 else point.value
            points[name, point.step] = str(value)
    return points


if __name__ == "__main__":
    found = differences(Path(sys.argv[1]), sys.argv[2])
    print("\n".join(found) or "read as MLflow reads it")
