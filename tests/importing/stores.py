"""Stores of other trackers, written by their documented layouts, or by TensorBoard itself."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_MS = 1_700_000_000_000
Points = Sequence[tuple[int, float, int]]

# The columns of MLflow 3.17 that are read, with the types and keys that it gives them.
_SCHEMA = """
CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name VARCHAR(256) NOT NULL, lifecycle_stage VARCHAR(32));
CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY, name VARCHAR(250), status VARCHAR(9), start_time BIGINT,
  end_time BIGINT, lifecycle_stage VARCHAR(20), experiment_id INTEGER);
CREATE TABLE metrics ("key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
  run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,
  PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan));
CREATE TABLE params ("key" VARCHAR(250) NOT NULL, value VARCHAR(8000) NOT NULL, run_uuid VARCHAR(32) NOT NULL);
CREATE TABLE tags ("key" VARCHAR(250) NOT NULL, value VARCHAR(8000), run_uuid VARCHAR(32) NOT NULL);
"""
_LARGEST = 1.7976931348623157e308


@dataclass(frozen=True)
class Written:
    """A run to write to a store of MLflow.

    Attributes:
        metrics: (timestamp in ms, value, step) by name, in the order of writing.
    """

    id: str
    name: str = ""
    experiment: str = "digits"
    status: str = "FINISHED"
    start: int = START_MS
    end: int | None = START_MS + 60_000
    stage: str = "active"
    metrics: Mapping[str, Points] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


_STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")


def mlflow_files(root: Path, runs: Sequence[Written]) -> Path:
    """Write a directory of files."""
    store = root / "mlruns"
    names = sorted({run.experiment for run in runs} | {"Default"})
    for number, name in enumerate(names):
        folder = store / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "meta.yaml").write_text(
            f"experiment_id: '{number}'\nlifecycle_stage: active\nname: '{name}'\n", encoding="utf-8"
        )
        # What MLflow 3 keeps beside the runs.
        (folder / "models" / "m-1").mkdir(parents=True, exist_ok=True)
    (store / ".trash").mkdir(exist_ok=True)
    for run in runs:
        folder = store / str(names.index(run.experiment)) / run.id
        for kind in ("metrics", "params", "tags", "artifacts"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
        end = "null" if run.end is None else run.end
        (folder / "meta.yaml").write_text(
            f"end_time: {end}\nexperiment_id: '1'\nlifecycle_stage: {run.stage}\nrun_id: {run.id}\n"
            f"run_name: '{run.name}'\nstart_time: {run.start}\nstatus: {_STATUSES.index(run.status) + 1}\n",
            encoding="utf-8",
        )
        for name, points in run.metrics.items():
            lines = [f"{time} {value} {step}\n" for time, value, step in points]
            write(folder / "metrics" / name, "".join(lines))
        for kind, texts in (("params", run.params), ("tags", run.tags)):
            for name, text in texts.items():
                write(folder / kind / name, text)
    return store


def mlflow_database(root: Path, runs: Sequence[Written]) -> Path:
    """Write a SQLite file."""
    path = root / "mlflow.db"
    names = sorted({run.experiment for run in runs} | {"Default"})
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.executescript(_SCHEMA)
        database.executemany("INSERT INTO experiments VALUES (?, ?, 'active')", list(enumerate(names)))
        for run in runs:
            database.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)",
                (run.id, run.name, run.status, run.start, run.end, run.stage, names.index(run.experiment)),
            )
            for name, points in run.metrics.items():
                database.executemany(
                    "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)",
                    [(name, *_stored(value, time, run.id, step)) for time, value, step in points],
                )
            for kind, texts in (("params", run.params), ("tags", run.tags)):
                database.executemany(
                    f"INSERT INTO {kind} VALUES (?, ?, ?)",
                    [(name, text, run.id) for name, text in texts.items()],
                )
    database.close()
    return path


def _stored(value: float, time: int, run_id: str, step: int) -> tuple[float, int, str, int, int]:
    """Return the row of a point as MLflow stores it, which has no NaN and no infinities in a database."""
    finite = 0.0 if math.isnan(value) else max(-_LARGEST, min(_LARGEST, value))
    return finite, time, run_id, step, int(math.isnan(value))


def write(path: Path, text: str) -> None:
    """Write a file and the folders around it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def events(folder: Path, *summaries: Any, wall_time: float = 1_700_000_000.0, suffix: str = "") -> Path:
    """Write an event file with TensorBoard's own writer of records; return it.

    Args:
        folder: the folder of the file.
        summaries: (step, [`Summary.Value`, ...]) of each event.
        wall_time: of the first event; each takes a second.
        suffix: of the name of the file.
    """
    # Imported here: protocol buffers take a while.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{int(wall_time)}.host{suffix}"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString())
        for index, (step, values) in enumerate(summaries):
            event = Event(wall_time=wall_time + index, step=step, summary=Summary(value=values))
            writer.write(event.SerializeToString())
    return path


def simple(tag: str, value: float) -> Any:
    """Return a scalar as PyTorch and TensorFlow 1 write it."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary.Value(tag=tag, simple_value=value)


def tensor(tag: str, value: Any, dtype: str = "float32", *, is_first: bool = False) -> Any:
    """Return a scalar as TensorFlow 2 writes it: only the first of a tag names the plugin."""
    import numpy as np
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.util.tensor_util import make_tensor_proto

    plugin = SummaryMetadata.PluginData(plugin_name="scalars")
    metadata = SummaryMetadata(plugin_data=plugin) if is_first else None
    array = np.array(value, dtype)
    return Summary.Value(tag=tag, tensor=make_tensor_proto(array), metadata=metadata)
