"""Curves of metrics: complete, up to date, and the same however they are read."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import event

from det_keras.master.reports import points
from det_keras.master.reports.series import Curves


@pytest.fixture
def trial(world):
    return world.launch()[1]["id"]


@pytest.fixture
def curves(world):
    return world.master.curves


def read(curves, trial_id: int, metric: str = "loss", group: str = "training", **view):
    found = curves.read([trial_id], group=group, metric=metric, **view)
    return found[0] if found else None


def run_again(world, trial_id: int, run_id: int) -> None:
    trial = world.client.trial(trial_id)
    world.pool.finish(f"{trial['taskId']}.{run_id - 1}", 1)
    world.wait_for_launch(trial, run_id)


@pytest.fixture
def statements(world):
    """Which statements read metrics."""
    seen: list[str] = []

    def note(connection, cursor, statement, *_):
        if "FROM metrics" in statement:
            seen.append(statement)

    readers = world.master.store.database.readers
    event.listen(readers, "before_cursor_execute", note)
    yield seen
    event.remove(readers, "before_cursor_execute", note)


def test_a_curve_has_batches_epochs_seconds_and_exact_values(world, trial, curves):
    values = [0.1 + 1e-16, 1 / 3, 2.0, -5]
    for i, value in enumerate(values):
        world.client.report(trial, "training", 10 * (i + 1), {"loss": value, "epochs": i / 2})
    found = read(curves, trial)
    assert found.batches.tolist() == [10, 20, 30, 40]
    assert found.values.tolist() == values
    assert found.epochs.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert (np.diff(found.seconds) >= 0).all()
    assert 0 <= found.seconds[0] < 60
    assert found.total == 4


def test_what_a_report_lacks_is_no_point_and_nan_is_one(world, trial, curves):
    for i, metrics in enumerate(
        [{"loss": 1.0}, {"acc": 1}, {"loss": "NaN"}, {"loss": "-Infinity"}, {"loss": None}, {"loss": 10**400}]
    ):
        world.client.report(trial, "training", i, metrics)
    found = read(curves, trial)
    assert found.batches.tolist() == [0, 2, 3, 5]
    assert found.values[0] == 1.0
    assert math.isnan(found.values[1])
    assert found.values[2:].tolist() == [-math.inf, math.inf]
    assert found.epochs is None


def test_epochs_may_be_missing_from_a_report(world, trial, curves):
    world.client.report(trial, "validation", 1, {"loss": 1.0, "epoch": 7})
    world.client.report(trial, "validation", 2, {"loss": 2.0})
    found = read(curves, trial, group="validation")
    assert found.epochs[0] == 7
    assert math.isnan(found.epochs[1])


@pytest.mark.parametrize(
    "name",
    ["loss", "a b", "a.b", 'say "x"', "back\\slash", "größe", "😀", "$.x", "'; --", "[0]", "x" * 10_000],
)
def test_any_name_can_be_read(world, trial, curves, name):
    for i in range(3):
        world.client.report(trial, "training", i, {name: i / 7, "other": 1, "epochs": i})
    found = read(curves, trial, name)
    assert found.values.tolist() == [0.0, 1 / 7, 2 / 7]
    assert found.epochs.tolist() == [0, 1, 2]


def test_both_ways_of_reading_give_the_same(world, trial, curves, monkeypatch):
    for i in range(50):
        metrics = {"loss": math.sin(i) if i % 9 else "NaN"} if i % 7 else {"acc": 1}
        world.client.report(trial, "training", 3 * i, {**metrics, **({"epochs": i} if i % 5 else {})})
    fast = read(curves, trial)
    for name in ("_extracted", "_sent"):
        monkeypatch.setattr(points, name, lambda *_: None)
    slow = read(Curves(world.master.store), trial)
    for name in ("batches", "epochs", "seconds", "values"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))


def test_a_curve_is_read_once(world, trial, curves, statements):
    world.client.report(trial, "training", 1, {"loss": 1.0})
    read(curves, trial)
    del statements[:]
    assert read(curves, trial, smoothing=0.5).values.tolist() == [1.0]
    assert statements == []


def test_a_curve_that_grew_is_read_on(world, trial, curves, statements):
    for i in range(20):
        world.client.report(trial, "training", i, {"loss": float(i)})
    read(curves, trial)
    world.client.report(trial, "training", 20, {"loss": 20.0})
    del statements[:]
    assert read(curves, trial).values.tolist() == list(range(21))
    assert len(statements) == 1
    assert "metrics.id >" in statements[0]


def test_a_report_merged_into_an_older_one_is_seen(world, trial, curves):
    world.client.report(trial, "training", 1, {"acc": 1.0})
    world.client.report(trial, "training", 2, {"acc": 1.0, "loss": 2.0})
    assert read(curves, trial).values.tolist() == [2.0]
    world.client.report(trial, "training", 1, {"loss": 1.0})
    assert read(curves, trial).values.tolist() == [1.0, 2.0]


def test_a_report_for_an_earlier_batch_is_seen_in_its_place(world, trial, curves):
    world.client.report(trial, "training", 10, {"loss": 10.0})
    assert read(curves, trial).values.tolist() == [10.0]
    world.client.report(trial, "training", 5, {"loss": 5.0})
    assert read(curves, trial).batches.tolist() == [5, 10]


def test_what_a_restart_rolled_back_is_gone(world, trial, curves):
    for i in range(1, 6):
        world.client.report(trial, "training", i, {"loss": float(i)})
    assert read(curves, trial).total == 5
    run_again(world, trial, 2)
    world.client.report(trial, "training", 3, {"loss": 33.0}, run_id=2)
    assert read(curves, trial).values.tolist() == [1.0, 2.0, 33.0]
    world.client.report(trial, "training", 4, {"loss": 44.0}, run_id=2)
    assert read(curves, trial).values.tolist() == [1.0, 2.0, 33.0, 44.0]


def test_a_metric_that_was_not_always_a_number_is_read_anew(world, trial, curves):
    world.client.report(trial, "training", 1, {"loss": "diverged"})
    assert read(curves, trial) is None
    world.client.report(trial, "training", 2, {"loss": 1.0})
    assert read(curves, trial).values.tolist() == [1.0]
    world.client.report(trial, "training", 3, {"loss": 1.0})
    assert read(curves, trial).values.tolist() == [1.0, 1.0]


def test_many_trials_come_in_the_order_that_was_asked_for(world, curves):
    names = [world.client.trials(world.client.create(activate=False))[0]["id"] for _ in range(12)]
    for one in names[1:]:
        with world.master.store.writing() as tx:
            add_points(tx, one, 30)
    asked = [names[5], 10**6, names[0], *names[6:], names[1]]
    found = curves.read(asked, group="training", metric="loss")
    assert [one.trial_id for one in found] == [names[5], *names[6:], names[1]]
    assert all(one.values.tolist() == [one.trial_id + i / 100 for i in range(30)] for one in found)


def test_thinning_and_a_range_leave_the_curve_whole(world, trial, curves):
    with world.master.store.writing() as tx:
        add_points(tx, trial, 3000)
    few = read(curves, trial, most_points=50)
    assert len(few.values) <= 50
    assert few.total == 3000
    part = read(curves, trial, start_batches=100, end_batches=200)
    assert part.batches.tolist() == list(range(100, 201))
    assert read(curves, trial, most_points=5000).total == 3000


def test_smoothing_is_over_the_whole_curve(world, trial, curves):
    with world.master.store.writing() as tx:
        add_points(tx, trial, 500)
    whole = read(curves, trial, smoothing=0.9)
    part = read(curves, trial, smoothing=0.9, start_batches=400)
    np.testing.assert_array_equal(part.values, whole.values[400:])


def test_memory_is_bounded(world, statements):
    curves = Curves(world.master.store, most_bytes=100_000)
    trials = [world.client.trials(world.client.create(activate=False))[0]["id"] for _ in range(3)]
    for one in trials:
        with world.master.store.writing() as tx:
            add_points(tx, one, 2000)
        read(curves, one)
    del statements[:]
    read(curves, trials[2])
    read(curves, trials[1])
    assert statements == []
    read(curves, trials[0])
    assert len(statements) == 1


def add_points(tx, trial_id: int, points: int) -> None:
    """Report a straight line at once, as so many reports would have."""
    from det_keras.master.database.models import MetricRow, TrialRow
    from det_keras.master.reports.summary import summarise_all

    trial = tx.get(TrialRow, trial_id)
    reports = [{"loss": trial_id + i / 100} for i in range(points)]
    for i, metrics in enumerate(reports):
        tx.add(
            MetricRow(
                trial_id=trial_id, run_id=1, group="training", partition="training", total_batches=i,
                archived=False, metrics=metrics, end_time=trial.start_time + timedelta(seconds=i),
            )
        )  # fmt: skip
    trial.summary_metrics = summarise_all(("training", metrics) for metrics in reports)


def compare(client, status: int = 200, **params):
    return client.get("/api/v1/trials/time-series", params=params, status=status)


def test_trials_are_compared_as_the_original_does(world, trial):
    for i in range(1, 4):
        world.client.report(trial, "training", i, {"loss": i / 3, "acc": "NaN", "epochs": i})
    world.client.report(trial, "validation", 3, {"loss": 9.0})
    (one,) = compare(world.client, trialIds=trial, metricNames=["loss", "acc"])["trials"]
    assert one["trial"]["id"] == trial
    training, validation = one["metrics"]
    assert (training["group"], training["type"]) == ("training", "METRIC_TYPE_TRAINING")
    assert [point["values"] for point in training["data"]] == [
        {"loss": i / 3, "acc": "NaN"} for i in (1, 2, 3)
    ]
    assert [point["batches"] for point in training["data"]] == [1, 2, 3]
    assert training["data"][0]["epoch"] == 1
    assert training["data"][0]["time"].endswith("Z")
    assert [point["values"]["loss"] for point in validation["data"]] == [9.0]


def test_metrics_may_be_named_with_their_group(world, trial):
    world.client.report(trial, "mine", 1, {"a.b": 1.0})
    (one,) = compare(world.client, trialIds=trial, metricIds="mine.a.b")["trials"]
    assert one["metrics"][0]["data"][0]["values"] == {"a.b": 1.0}


def test_a_comparison_gives_no_more_points_than_were_asked_for(world, trial):
    with world.master.store.writing() as tx:
        add_points(tx, trial, 1000)
    params = {"trialIds": trial, "metricNames": "loss", "group": "training"}
    counts = [
        len(compare(world.client, **params, **more)["trials"][0]["metrics"][0]["data"])
        for more in ({}, {"maxDatapoints": 20}, {"startBatches": 990}, {"endBatches": 5})
    ]
    assert 190 < counts[0] <= 200
    assert counts[1] <= 20
    assert counts[2:] == [10, 6]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "metricNames"),
        ({"metricIds": "loss"}, "group.metric_name"),
        ({"metricNames": "loss", "startBatches": 5, "endBatches": 5}, "above"),
        (
            {"metricNames": "loss", "timeSeriesFilter.name": "epoch"},
            "There is no parameter `timeSeriesFilter.name`",
        ),
        ({"metricNames": "loss", "smoothing": 1}, "smoothing"),
        ({"metricNames": "loss", "metricType": "METRIC_TYPE_PROFILING"}, "group"),
    ],
    ids=["nothing", "no-group", "range", "filter", "smoothing", "profiler"],
)
def test_what_cannot_be_compared_is_refused(world, trial, params, message):
    assert message in compare(world.client, 400, trialIds=trial, **params)["error"]["error"]


def test_comparing_an_unknown_trial_is_not_found(world):
    compare(world.client, 404, trialIds=99, metricNames="loss")
