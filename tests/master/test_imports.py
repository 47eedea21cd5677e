"""Runs of other trackers on a master: stored once, completed later, and like runs that reported themselves."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from importing.stores import START_MS, Written, mlflow_files

from det_keras.client import Session
from det_keras.importing import mlflow
from det_keras.importing.sending import import_runs, parts_of
from det_keras.protocol.imports import packed

AT = datetime.fromtimestamp(START_MS / 1000 + 3600, timezone.utc)
LOSS = [(START_MS + step, 1 / (step + 1), step) for step in range(20)]
VAL = [(START_MS + step, 2 / (step + 1), step) for step in range(0, 20, 5)]


@pytest.fixture
def session(world):
    return Session("http://127.0.0.1:8080", world.client.token, transport=world.http._transport)


@pytest.fixture
def imported(session, tmp_path):
    """Return a function that writes runs and imports the store, and returns what is printed."""

    def run(*runs: Written) -> str:
        store = mlflow_files(tmp_path, runs) if runs else tmp_path / "mlruns"
        found = mlflow.find(store, None, AT)
        return str(import_runs(session.api, "mlflow", found))

    return run


def state_of(world) -> list:
    """Return everything that clients see of all experiments."""
    client = world.client
    found = []
    for experiment in client.get("/api/v1/experiments")["experiments"]:
        for trial in client.trials(experiment["id"]):
            path = f"/api/v1/trials/{trial['id']}/workloads?limit=-1"
            found.append((client.experiment(experiment["id"]), trial, client.get(path)["workloads"]))
    return found


def metrics_of(world, trial_id: int = 1) -> dict:
    """Return the metrics of a trial by group and batch."""
    found = {}
    for workload in world.client.get(f"/api/v1/trials/{trial_id}/workloads?limit=-1")["workloads"]:
        for group in ("training", "validation"):
            if workload[group]:
                report = workload[group]
                assert (group, report["totalBatches"]) not in found
                found[group, report["totalBatches"]] = report["metrics"]["avgMetrics"]
    return found


def test_run_is_an_experiment_with_the_times_and_the_state_of_the_run(world, imported):
    run = Written(
        "a" * 32,
        name="first",
        experiment="größe",
        status="FAILED",
        metrics={"loss": LOSS, "val_loss": VAL},
        params={"lr": "0.5"},
        tags={"mlflow.note.content": "A note.", "team": "vision"},
    )
    assert imported(run) == "1 new, 0 continued, 0 unchanged"
    ((experiment, trial, _),) = state_of(world)
    assert experiment["name"] == "first"
    assert experiment["description"] == "A note."
    assert experiment["labels"] == ["größe", "mlflow", "team=vision"]
    assert (experiment["state"], trial["state"]) == ("STATE_ERROR", "STATE_ERROR")
    assert trial["hparams"] == {"lr": 0.5}
    for shape in (experiment, trial):
        assert shape["startTime"].startswith("2023-11-14T22:13:20")
        assert shape["endTime"].startswith("2023-11-14T22:14:20")
    assert (trial["totalBatchesProcessed"], trial["bestValidation"]["totalBatches"]) == (19, 15)
    assert metrics_of(world) == {
        **{("training", step): {"loss": 1 / (step + 1)} for step in range(20)},
        **{("validation", step): {"val_loss": 2 / (step + 1)} for step in range(0, 20, 5)},
    }


def test_imported_run_is_like_one_that_reported_itself(world, imported):
    values = [1.0, 0.1, math.nan, math.inf, -0.3, 0.2]
    points = [(START_MS + step, value, step + 1) for step, value in enumerate(values)]
    imported(Written("a" * 32, metrics={"loss": points, "val_loss": points}))
    config = "name: n\nsearcher: {name: single, metric: val_loss}\n"
    answer = world.client.post("/api/v1/experiments", {"config": config, "unmanaged": True})
    body = {"experimentId": answer["experiment"]["id"], "hparams": {}, "unmanaged": True}
    number = world.client.post("/api/v1/trials", body)["trial"]["id"]
    names = {"nan": "NaN", "inf": "Infinity"}
    for step, value in enumerate(values):
        sent = names.get(str(value), value)
        world.client.report(number, "training", step + 1, {"loss": sent}, run_id=0)
        world.client.report(number, "validation", step + 1, {"val_loss": sent}, run_id=0)
    ours, theirs = (world.client.trial(trial_id) for trial_id in (1, number))
    for field in ("summaryMetrics", "totalBatchesProcessed", "searcherMetricValue"):
        assert ours[field] == theirs[field]
    assert ours["bestValidation"]["metrics"] == theirs["bestValidation"]["metrics"]
    assert metrics_of(world, 1) == metrics_of(world, number)


def test_second_import_changes_nothing(world, imported):
    runs = [Written(character * 32, metrics={"loss": LOSS}) for character in "abc"]
    assert imported(*runs) == "3 new, 0 continued, 0 unchanged"
    before = state_of(world)
    assert imported() == "0 new, 0 continued, 3 unchanged"
    assert state_of(world) == before


def test_files_that_were_only_touched_change_nothing(world, imported, tmp_path):
    run = Written("a" * 32, metrics={"loss": LOSS, "val_loss": VAL})
    imported(run)
    before = state_of(world)
    for path in tmp_path.rglob("metrics/*"):
        path.touch()
    assert imported() == "0 new, 0 continued, 1 unchanged"
    after = state_of(world)
    assert [workloads for *_, workloads in after] == [workloads for *_, workloads in before]
    assert [trial["summaryMetrics"] for _, trial, _ in after] == [
        trial["summaryMetrics"] for _, trial, _ in before
    ]


def test_grown_run_gets_its_new_points_and_its_end(world, imported):
    running = Written("a" * 32, status="RUNNING", end=None, metrics={"loss": LOSS[:7], "val_loss": VAL[:1]})
    imported(running)
    assert world.client.experiment(1)["state"] == "STATE_RUNNING"
    assert world.client.experiment(1)["endTime"] is None
    grown = Written("a" * 32, metrics={"loss": LOSS, "val_loss": VAL})
    other = Written("b" * 32, metrics={"loss": LOSS})
    assert imported(grown, other) == "1 new, 1 continued, 0 unchanged"
    continued, whole = world.client.trial(1), world.client.trial(2)
    assert continued["state"] == "STATE_COMPLETED"
    assert continued["summaryMetrics"]["avg_metrics"] == whole["summaryMetrics"]["avg_metrics"]
    assert len(metrics_of(world, 1)) == 24


def test_running_run_is_not_lost(world, imported):
    imported(Written("a" * 32, status="RUNNING", end=None))
    with world.master.store.reading() as session:
        from det_keras.master.experiments.unmanaged import loss_times

        assert loss_times(session) == {}


def test_later_value_of_a_step_replaces_the_stored_one_in_curve_and_summary(world, imported):
    imported(Written("a" * 32, metrics={"loss": LOSS, "val_loss": VAL}))
    series = "/api/v1/trials/time-series?trialIds=1&metricNames=loss&group=training&maxDatapoints=100"
    world.client.get(series)
    changed = [(START_MS + 99, 7.0, 3), (START_MS + 99, 8.0, -2)]
    better = [(START_MS + 99, 0.001, 5)]
    run = Written(
        "a" * 32, metrics={"loss": [*LOSS, *changed], "val_loss": [*VAL, *better], "late": LOSS[:2]}
    )
    assert imported(run) == "0 new, 1 continued, 0 unchanged"
    expected = {step: 1 / (step + 1) for step in range(20)} | {3: 7.0, -2: 8.0}
    found = metrics_of(world)
    assert {step: found["training", step]["loss"] for step in expected} == expected
    assert found["training", 0] == {"loss": 1.0, "late": 1.0}
    summary = world.client.trial(1)["summaryMetrics"]["avg_metrics"]["loss"]
    assert (summary["count"], summary["max"], summary["last"]) == (21, 8.0, 1 / 20)
    assert summary["sum"] == pytest.approx(sum(expected.values()))
    (curve,) = world.client.get(series)["trials"][0]["metrics"]
    points = {int(point["batches"]): point["values"]["loss"] for point in curve["data"]}
    # Curves begin at step 0.
    del expected[-2]
    assert points == expected
    best = world.client.trial(1)["bestValidation"]
    assert (best["totalBatches"], best["metrics"]["avgMetrics"]["val_loss"]) == (5, 0.001)


def test_curve_that_was_read_before_shows_a_replaced_value(world, imported):
    series = "/api/v1/trials/time-series?trialIds=1&metricNames=loss&group=training&maxDatapoints=100"

    def curve() -> dict:
        (metric,) = world.client.get(series)["trials"][0]["metrics"]
        return {int(point["batches"]): point["values"]["loss"] for point in metric["data"]}

    imported(Written("a" * 32, metrics={"loss": LOSS}))
    before = curve()
    imported(Written("a" * 32, metrics={"loss": [*LOSS, (START_MS + 99, 7.0, 3)]}))
    assert curve() == {**before, 3: 7.0}


def long_run(tmp_path: Path) -> mlflow.FoundRun:
    """Return a run that is sent in several parts."""
    points = [(START_MS + step, step / 7, step) for step in range(25_000)]
    store = mlflow_files(tmp_path, [Written("a" * 32, metrics={"loss": points})])
    (found,) = mlflow.find(store, None, AT)
    return found


def test_run_of_which_parts_are_missing_is_completed_by_the_next_import(world, session, tmp_path):
    found = long_run(tmp_path)
    parts = list(parts_of("mlflow", found, found.read()))
    assert len(parts) > 2
    for part in parts[:2]:
        session.api.imports.store(f"mlflow:{found.id}", part)
    assert session.api.imports.find([f"mlflow:{found.id}"])[f"mlflow:{found.id}"]["fingerprint"] == ""
    assert world.client.experiment(1)["state"] == "STATE_RUNNING"
    assert str(import_runs(session.api, "mlflow", [found])) == "0 new, 1 continued, 0 unchanged"
    trial = world.client.trial(1)
    assert trial["summaryMetrics"]["avg_metrics"]["loss"]["count"] == 25_000
    assert trial["state"] == "STATE_COMPLETED"
    assert str(import_runs(session.api, "mlflow", [found])) == "0 new, 0 continued, 1 unchanged"


def test_parts_that_arrive_twice_and_in_another_order_change_nothing(world, session, tmp_path):
    found = long_run(tmp_path)
    parts = list(parts_of("mlflow", found, found.read()))
    for part in (parts[1], parts[0], parts[1], *parts[2:], parts[0], parts[-1]):
        session.api.imports.store("mlflow:x", part)
    summary = world.client.trial(1)["summaryMetrics"]["avg_metrics"]["loss"]
    assert (summary["count"], summary["last"]) == (25_000, 24_999 / 7)


def test_labels_and_names_that_users_gave_stay(world, imported):
    imported(Written("a" * 32, tags={"a": "1"}))
    world.client.call("PATCH", "/api/v1/experiments/1", {"labels": ["mine"], "name": "mine"})
    imported(Written("a" * 32, tags={"a": "1", "b": "2"}))
    found = world.client.experiment(1)
    assert found["name"] == "mine"
    assert found["labels"] == ["a=1", "b=2", "digits", "mine", "mlflow"]


def test_deleted_experiment_is_imported_again(world, imported):
    run = Written("a" * 32, metrics={"loss": LOSS})
    imported(run)
    world.client.call("DELETE", "/api/v1/experiments/1")
    from master.fakes import eventually

    eventually(lambda: not world.client.get("/api/v1/experiments")["experiments"])
    assert imported(run) == "1 new, 0 continued, 0 unchanged"


def test_run_that_another_user_has_imported_is_refused(world, session, imported, tmp_path):
    run = Written("a" * 32)
    imported(run)
    with world.master.store.writing() as tx:
        from det_keras.master.database.models import ExperimentRow, UserRow

        other = UserRow(username="other", modified_at=AT)
        tx.add(other)
        tx.flush()
        tx.get(ExperimentRow, 1).owner_id = other.id
    (tmp_path / "mlruns").rename(tmp_path / "old")
    run = Written("a" * 32, tags={"new": "1"})
    (found,) = mlflow.find(mlflow_files(tmp_path, [run]), None, AT)
    report = import_runs(session.api, "mlflow", [found])
    assert report.failures == [
        f"{found.place}: the master refused it: User 'other' has imported this run, as experiment 1."
    ]


def body(**columns):
    """Return a part with columns of two reports, some of which are replaced."""
    reports = {
        "group": "training",
        "steps": packed(np.array([1, 2])),
        "times": packed(np.array([5, 6])),
        "metrics": {"loss": {"values": packed(np.array([1.0, 2.0]))}},
        **columns,
    }
    return {"config": "name: n\n", "startTime": "2026-01-01T00:00:00Z", "reports": [reports]}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"steps": "%"}, "`steps` cannot be read: it is not base64"),
        ({"steps": packed(np.array([2, 1]))}, "ascending"),
        ({"steps": packed(np.array([1, 1]))}, "ascending"),
        ({"times": packed(np.array([5]))}, "`times` has 1 values in place of 2"),
        ({"times": packed(np.array([5, -1]))}, "1970"),
        ({"times": packed(np.array([5, 1 << 62]))}, "1970"),
        ({"metrics": {"loss": {"values": packed(np.array([1.0]))}}}, "`loss` has 1 values in place of 2"),
        (
            {"metrics": {"a": {"values": packed(np.array([1.0])), "rows": packed(np.array([2], np.int32))}}},
            "rows of the column `a`",
        ),
        (
            {"metrics": {"a": {"values": packed(np.array([1.0])), "rows": packed(np.array([-1], np.int32))}}},
            "rows of the column `a`",
        ),
        ({"group": "a.b"}, "without a dot"),
        ({"group": "cpu"}, "samples of a machine"),
    ],
)
def test_malformed_part_is_refused_and_stores_nothing(world, columns, text):
    answer = world.client.call("PUT", "/api/v1/imports/x", body(**columns), status=400)
    assert text in str(answer)
    assert world.client.get("/api/v1/experiments")["experiments"] == []


def test_experiment_that_is_no_import_keeps_its_trials(world):
    path = "/api/v1/experiments/by-external-id/mine"
    world.client.call("PUT", path, {"config": "name: mine\n", "unmanaged": True})
    world.client.call("PUT", "/api/v1/imports/mine", body(), status=400)
    assert world.client.trials(1) == []
    trial = {"createTrialRequest": {"experimentId": 1}, "externalTrialId": "mine"}
    world.client.call("PUT", "/api/v1/trials", trial)
    world.client.call("PUT", "/api/v1/imports/mine", body(), status=400)
    assert metrics_of(world) == {}
