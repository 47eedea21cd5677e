"""Stores of MLflow, written by the layouts of MLflow 3.17, and by MLflow itself where it is installed."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from det_keras.importing import mlflow
from det_keras.importing.base import BrokenRun, BrokenRunError, WrongPathError
from importing.oracle_mlflow import differences
from importing.stores import START_MS, Written, mlflow_database, mlflow_files
from importing.test_base import rows

AT = datetime.fromtimestamp(START_MS / 1000 + 3600, timezone.utc)
LONG = "n" * 100


@pytest.fixture(params=[mlflow_files, mlflow_database], ids=["files", "database"])
def write(request, tmp_path):
    """Return a function that writes a store of runs."""
    return lambda *runs: request.param(tmp_path, runs)


def found(store: Path, experiment: str | None = None, at: datetime = AT):
    return {run.id: run for run in mlflow.find(store, experiment, at)}


def read(store: Path, at: datetime = AT):
    (run,) = mlflow.find(store, None, at)
    return run.read()


def test_run_is_read_with_everything(write):
    run = read(
        write(
            Written(
                "a" * 32,
                name="fallback",
                experiment="größe",
                metrics={
                    "loss": [(START_MS, 1.0, 0), (START_MS + 1, 0.5, 1)],
                    "val_loss": [(START_MS + 2, 2.0, 1)],
                },
                params={"learning_rate": "0.01", "layers.units": "32", "optimizer": "adam"},
                tags={
                    "mlflow.runName": "first",
                    "mlflow.note.content": "A note.",
                    "mlflow.user": "me",
                    "team": "vision",
                },
            )
        )
    )
    assert (run.name, run.project, run.notes, run.tags) == ("first", "größe", "A note.", ["team=vision"])
    assert run.hparams == {"layers.units": 32, "learning_rate": 0.01, "optimizer": "adam"}
    assert rows(run.tables["training"]) == {0: {"loss": 1.0}, 1: {"loss": 0.5}}
    assert rows(run.tables["validation"]) == {1: {"val_loss": 2.0}}
    assert run.tables["training"].times.tolist() == [START_MS * 1000, START_MS * 1000 + 1000]
    assert run.started == datetime.fromtimestamp(START_MS / 1000, timezone.utc)
    assert run.ended == run.started + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("status", "state"), [("FINISHED", "COMPLETED"), ("FAILED", "ERROR"), ("KILLED", "CANCELED")]
)
def test_state_is_kept(write, status, state):
    assert read(write(Written("a" * 32, status=status))).state == state


def test_values_and_names_of_all_kinds_are_kept(write):
    values = [math.nan, math.inf, -math.inf, 5e-324, 1e308]
    names = ["train/loss", "a.b", "größe", LONG, "with space"]
    points = [(START_MS + step, value, step) for step, value in enumerate(values)]
    table = read(write(Written("a" * 32, metrics=dict.fromkeys(names, points)))).tables["training"]
    assert sorted(table.metrics) == sorted(names)
    for column in table.metrics.values():
        assert [str(value) for value in column.values.tolist()] == [str(value) for value in values]


def test_last_point_of_a_step_counts_in_any_order(write):
    points = [(START_MS, 1.0, 5), (START_MS + 1, 2.0, 3), (START_MS + 2, 3.0, 5), (START_MS + 3, 4.0, -1)]
    table = read(write(Written("a" * 32, metrics={"loss": points}))).tables["training"]
    assert rows(table) == {-1: {"loss": 4.0}, 3: {"loss": 2.0}, 5: {"loss": 3.0}}


def test_empty_run_has_no_tables(write):
    run = read(write(Written("a" * 32, end=None)))
    assert (dict(run.tables), run.name, run.ended) == ({}, "", run.started)


def test_running_run_has_no_end_and_is_lost_after_a_day(tmp_path):
    metrics = {"loss": [(START_MS, 1.0, 0)]}
    store = mlflow_database(tmp_path, [Written("a" * 32, status="RUNNING", end=None, metrics=metrics)])
    run = read(store)
    assert (run.state, run.ended) == ("ACTIVE", None)
    later = AT + timedelta(days=2)
    lost = read(store, later)
    assert (lost.state, lost.ended) == ("ERROR", run.started)
    assert found(store)["a" * 32].fingerprint != found(store, at=later)["a" * 32].fingerprint


def test_deleted_runs_are_left_out(write):
    store = write(Written("a" * 32), Written("b" * 32, stage="deleted"))
    assert list(found(store)) == ["a" * 32]


def test_only_runs_of_the_named_experiment(write):
    store = write(Written("a" * 32), Written("b" * 32, experiment="other"))
    assert list(found(store, "other")) == ["b" * 32]
    assert list(found(store, "Default")) == []
    with pytest.raises(
        WrongPathError, match=r"no experiment 'x'. The store has 'Default', 'digits', 'other'"
    ):
        found(store, "x")


def test_store_is_found_in_the_directory_around_it(write):
    assert list(found(write(Written("a" * 32)).parent)) == ["a" * 32]


def test_metrics_of_the_monitor_are_a_group_of_their_own(write):
    metrics = {"system/cpu_utilization_percentage": [(START_MS, 5.0, 0)], "loss": [(START_MS, 1.0, 7)]}
    run = read(write(Written("a" * 32, metrics=metrics)))
    assert sorted(run.tables) == ["system", "training"]


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"loss": [(START_MS, 1.0, 0), (START_MS + 1, 2.0, 1)]}},
        {"status": "FAILED"},
        {"params": {"lr": "0.2"}},
        {"tags": {"a": "c"}},
        {"end": START_MS + 9},
    ],
    ids=lambda change: next(iter(change)),
)
def test_fingerprint_changes_with_the_run(write, change):
    before = {"metrics": {"loss": [(START_MS, 1.0, 0)]}, "params": {"lr": "0.1"}, "tags": {"a": "b"}}
    first = found(write(Written("a" * 32, **before)))["a" * 32].fingerprint
    assert found(write(Written("a" * 32, **{**before, **change})))["a" * 32].fingerprint != first


def test_nothing_is_written(write):
    store = write(Written("a" * 32, metrics={"loss": [(START_MS, 1.0, 0)]}))

    def everything():
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in store.parent.rglob("*")
        }

    before = everything()
    read(store)
    assert everything() == before


def files_of(tmp_path: Path, **fields) -> tuple[Path, Path]:
    """Return a store of files with one run, and the file of its metric."""
    store = mlflow_files(tmp_path, [Written("a" * 32, metrics={"loss": [(START_MS, 1.0, 0)]}, **fields)])
    return store, next(store.rglob("metrics/loss"))


def test_broken_line_is_named_with_its_place(tmp_path):
    store, file = files_of(tmp_path)
    file.write_text(f"{START_MS} 1.0 0\n{START_MS} one 1\n")
    with pytest.raises(
        BrokenRunError, match=f"{file}:2: expected `timestamp value step`, found '{START_MS} one 1'"
    ):
        read(store)


def test_lines_of_older_and_newer_releases_are_read(tmp_path):
    store, file = files_of(tmp_path)
    file.write_text(f"{START_MS} 1.0\n{START_MS} 2.0 1 data 0f2a\n\n{START_MS} 3.0 2")
    assert rows(read(store).tables["training"]) == {0: {"loss": 1.0}, 1: {"loss": 2.0}, 2: {"loss": 3.0}}


def test_line_that_is_being_written_is_left_out(tmp_path):
    store, file = files_of(tmp_path, status="RUNNING", end=None)
    file.write_text(f"{START_MS} 1.0 0\n{START_MS} 2.0 1")
    assert rows(read(store).tables["training"]) == {0: {"loss": 1.0}}


def test_broken_runs_are_named_and_the_others_found(tmp_path):
    store = mlflow_files(tmp_path, [Written(character * 32) for character in "abcd"])
    (next(store.glob(f"*/{'a' * 32}")) / "meta.yaml").write_text("run_id: x\n  y: [\n")
    (next(store.glob(f"*/{'b' * 32}")) / "meta.yaml").unlink()
    (next(store.glob(f"*/{'c' * 32}")) / "meta.yaml").write_text("run_id: c\nstart_time: now\n")
    broken = [run for run in mlflow.find(store, None, AT) if isinstance(run, BrokenRun)]
    texts = [str(run.error) for run in broken]
    assert "meta.yaml:2 is not YAML" in texts[0]
    assert texts[1].endswith("meta.yaml is missing.")
    assert "`start_time`" in texts[2]
    assert [run.id for run in mlflow.find(store, None, AT) if not isinstance(run, BrokenRun)] == ["d" * 32]


def test_path_without_a_store_names_what_is_expected(tmp_path):
    expected = r"Expected a directory `mlruns`, or a SQLite file such as `mlflow.db`\."
    (tmp_path / "text.db").write_text("text")
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    for path, problem in {
        tmp_path / "missing": "does not exist",
        tmp_path: "has no runs of MLflow",
        tmp_path / "text.db": "is no SQLite file",
        tmp_path / "broken.db": "is no database of MLflow",
    }.items():
        with pytest.raises(WrongPathError, match=rf"{path}.* {problem}.*{expected}"):
            list(mlflow.find(path, None, AT))


@pytest.mark.parametrize("kind", ["files", "database"])
def test_store_of_mlflow_itself_is_read_as_mlflow_reads_it(tmp_path, kind):
    pytest.importorskip("mlflow")
    assert differences(tmp_path, kind) == []
