"""Reports of metrics: merged, rolled back, refused, streamed."""

from __future__ import annotations

import json

import pytest

from master.fakes import SINGLE


@pytest.fixture
def trial(world):
    return world.launch()[1]["id"]


def rows(client, trial_id: int, group: str) -> list[dict]:
    headers = {"Authorization": f"Bearer {client.token}"}
    params = {"group": group, "trialIds": trial_id}
    response = client.http.get("/api/v1/trials/metrics/trial_metrics", headers=headers, params=params)
    assert response.status_code == 200, response.text
    return [row for line in response.text.splitlines() for row in json.loads(line)["result"]["metrics"]]


def workloads(client, trial_id: int, **params) -> list[dict]:
    return client.get(f"/api/v1/trials/{trial_id}/workloads", params=params)["workloads"]


def run_again(world, trial_id: int, run_id: int) -> None:
    trial = world.client.trial(trial_id)
    world.pool.finish(f"{trial['taskId']}.{run_id - 1}", 1)
    world.wait_for_launch(trial, run_id)


def test_reports_show_in_every_view(world, trial):
    client = world.client
    client.report(trial, "training", 10, {"loss": 2.0})
    client.report(trial, "validation", 10, {"loss": 1.0, "acc": "NaN"})
    client.report(trial, "mine", 10, {"x": {"deep": [1, True]}})
    shown = client.trial(trial)
    assert shown["totalBatchesProcessed"] == 10
    assert shown["searcherMetricValue"] == 1.0
    assert shown["bestValidation"]["metrics"]["avgMetrics"] == {"loss": 1.0, "acc": "NaN"}
    assert shown["latestValidation"]["totalBatches"] == 10
    assert set(shown["summaryMetrics"]) == {"avg_metrics", "validation_metrics", "mine"}
    kinds = [next(kind for kind, value in one.items() if value) for one in workloads(client, trial)]
    assert kinds == ["training", "validation"]
    assert rows(client, trial, "validation")[0]["metrics"] == {
        "validation_metrics": {"loss": 1.0, "acc": "NaN"}
    }
    assert rows(client, trial, "mine")[0]["metrics"]["avg_metrics"] == {"x": {"deep": [1, True]}}
    assert rows(client, trial, "unknown") == []


def test_a_validation_that_diverged_is_the_latest_and_never_the_best(world, trial):
    client = world.client
    client.report(trial, "validation", 10, {"loss": 0.5})
    client.report(trial, "validation", 20, {"loss": "NaN"})
    client.report(trial, "validation", 30, {"other": 1.0})
    shown = client.trial(trial)
    assert shown["latestValidation"]["totalBatches"] == 20
    assert shown["bestValidation"]["totalBatches"] == 10
    assert shown["searcherMetricValue"] == 0.5
    # A second run from batch 15 hides it, and what is left is looked at anew.
    run_again(world, trial, 2)
    client.report(trial, "validation", 15, {"loss": "Infinity"}, run_id=2)
    shown = client.trial(trial)
    assert (shown["latestValidation"]["totalBatches"], shown["bestValidation"]["totalBatches"]) == (15, 10)


def test_same_report_twice_changes_nothing(world, trial):
    for _ in range(2):
        world.client.report(trial, "training", 10, {"loss": 2.0})
    assert len(rows(world.client, trial, "training")) == 1
    assert world.client.trial(trial)["summaryMetrics"]["avg_metrics"]["loss"]["count"] == 1


def test_reports_of_one_step_are_united_unless_they_contradict(world, trial):
    client = world.client
    client.report(trial, "training", 10, {"loss": 2.0})
    client.report(trial, "training", 10, {"acc": 0.5})
    (row,) = rows(client, trial, "training")
    assert row["metrics"]["avg_metrics"] == {"loss": 2.0, "acc": 0.5}
    error = client.report(trial, "training", 10, {"loss": 3.0, "new": 1}, status=400)["error"]["error"]
    assert "conflicting key: loss" in error
    assert "new" not in rows(client, trial, "training")[0]["metrics"]["avg_metrics"]


def test_list_of_reports_is_read_page_by_page(world, trial):
    """Every page is the part of the whole list that it asks for, in the order of batches and times."""
    client = world.client
    for steps in range(1, 8):
        client.report(trial, "training", steps, {"loss": 1.0 / steps})
        client.report(trial, "mine", steps, {"x": 1})
    for steps in (3, 6):
        client.report(trial, "validation", steps, {"loss": 1.0})
        body = {
            "uuid": f"00000000-0000-4000-8000-{steps:012}",
            "taskId": client.trial(trial)["taskId"],
            "state": "STATE_COMPLETED",
            "resources": {"weights": "10"},
            "metadata": {"steps_completed": steps},
        }
        client.post("/api/v1/checkpoints", body)
    path = f"/api/v1/trials/{trial}/workloads"
    whole = client.get(path)
    batches = [int(report["totalBatches"]) for one in whole["workloads"] for report in one.values() if report]
    assert batches == sorted([*range(1, 8), 3, 3, 6, 6])
    assert whole["pagination"]["total"] == 11
    for order in ("ORDER_BY_ASC", "ORDER_BY_DESC"):
        everything = whole["workloads"][:: 1 if order == "ORDER_BY_ASC" else -1]
        for offset in (-12, -3, 0, 4, 11, 12):
            for limit in (-2, -1, 0, 1, 5, 100):
                page = client.get(path, params={"offset": offset, "limit": limit, "orderBy": order})
                start, end = page["pagination"]["startIndex"], page["pagination"]["endIndex"]
                assert start == (max(0, 11 + offset) if offset < 0 else min(11, offset))
                assert end == (start if limit == -2 else 11 if limit <= 0 else min(11, start + limit))
                assert page["workloads"] == everything[start:end]


def test_reports_of_one_moment_have_their_place_on_every_page(world, trial):
    """Databases order what is equal as they like, and each page anew."""
    client = world.client
    reports = [
        {
            "group": group,
            "metrics": {
                "trialRunId": 1,
                "stepsCompleted": steps,
                "reportTime": "2026-01-02T03:04:05.000006Z",
                "metrics": {"avgMetrics": {"loss": 1.0}},
            },
        }
        for steps in range(1, 21)
        for group in ("validation", "training")
    ]
    assert client.post(f"/api/v1/trials/{trial}/metrics/together", {"reports": reports})["failed"] == []
    whole = workloads(client, trial)
    kinds = [next(kind for kind, report in one.items() if report) for one in whole]
    assert kinds == ["training", "validation"] * 20
    for order in ("ORDER_BY_ASC", "ORDER_BY_DESC"):
        pages = [workloads(client, trial, offset=at, limit=3, orderBy=order) for at in range(0, 40, 3)]
        shown = [one for page in pages for one in page]
        assert shown == (whole if order == "ORDER_BY_ASC" else whole[::-1])


def test_reports_in_one_call_are_stored_and_the_refused_ones_named(world, trial):
    client = world.client
    client.report(trial, "training", 1, {"loss": 1.0})

    def sent(group, steps, run_id=1, **metrics):
        values = {"trialRunId": run_id, "stepsCompleted": steps, "metrics": {"avgMetrics": metrics}}
        return {"group": group, "metrics": values}

    reports = [
        sent("training", 1, loss=5.0),
        sent("training", 2, loss=0.5),
        sent("validation", 2, loss=0.25),
        sent("a.b", 2, x=1.0),
        sent("training", 3, run_id=7, loss=0.1),
        sent("mine", 2, x=1.0),
    ]
    path = f"/api/v1/trials/{trial}/metrics/together"
    for _ in range(2):
        refused = client.post(path, {"reports": reports})["failed"]
        assert [(each["index"], each["status"]) for each in refused] == [(0, 400), (3, 400), (4, 400)]
        assert "conflicting key: loss" in refused[0]["message"]
        assert "invalid run id" in refused[2]["message"]
        found = [row["metrics"]["avg_metrics"] for row in rows(client, trial, "training")]
        assert found == [{"loss": 1.0}, {"loss": 0.5}]
        assert client.trial(trial)["bestValidation"]["totalBatches"] == 2
        assert len(rows(client, trial, "mine")) == 1
    unknown = client.post("/api/v1/trials/999/metrics/together", {"reports": reports[1:2]})["failed"]
    assert [each["status"] for each in unknown] == [404]
    answer = client.post(path, {"reports": reports[1:2] * 501}, status=400)
    assert "500" in answer["error"]["error"]


def test_batch_metrics_are_shown_when_asked_for_and_never_kept_of_validations(world, trial):
    values = {"trialRunId": 1, "stepsCompleted": 2}
    metrics = {"avgMetrics": {"loss": 1.0}, "batchMetrics": [{"loss": 1.0}, {"loss": 1.0}]}
    for group in ("training", "validation"):
        body = {"group": group, "metrics": {**values, "metrics": metrics}}
        world.client.post(f"/api/v1/trials/{trial}/metrics", body)
    training, validation = workloads(world.client, trial, includeBatchMetrics="true")
    assert len(training["training"]["metrics"]["batchMetrics"]) == 2
    assert validation["validation"]["metrics"]["batchMetrics"] is None
    assert workloads(world.client, trial)[0]["training"]["metrics"]["batchMetrics"] is None


def test_restart_hides_what_the_earlier_run_reported_beyond_it(world, trial):
    client = world.client
    for steps, loss in ((10, 0.9), (20, 0.1), (30, 0.2)):
        client.report(trial, "training", steps, {"loss": loss})
        client.report(trial, "validation", steps, {"loss": loss})
        client.report(trial, "mine", steps, {"x": steps})
    assert client.trial(trial)["searcherMetricValue"] == 0.1
    run_again(world, trial, 2)
    assert len(rows(client, trial, "training")) == 3, "Nothing is hidden before the first report."
    client.report(trial, "training", 20, {"loss": 0.5}, run_id=2)
    assert [(row["trialRunId"], row["totalBatches"]) for row in rows(client, trial, "training")] == [
        (1, 10),
        (2, 20),
    ]
    # The same batch of another group may still be right: only what lies beyond is hidden.
    assert [row["totalBatches"] for row in rows(client, trial, "validation")] == [10, 20]
    assert [row["totalBatches"] for row in rows(client, trial, "mine")] == [10, 20]
    client.report(trial, "validation", 20, {"loss": 0.6}, run_id=2)
    shown = client.trial(trial)
    assert shown["searcherMetricValue"] == 0.6
    assert shown["totalBatchesProcessed"] == 20
    assert shown["summaryMetrics"]["validation_metrics"]["loss"]["count"] == 2
    assert shown["bestValidation"]["totalBatches"] == 20


def test_report_of_an_earlier_run_is_refused(world, trial):
    run_again(world, trial, 2)
    error = world.client.report(trial, "training", 1, {"loss": 1.0}, status=400)["error"]["error"]
    assert error == "invalid run id, 1 (reported) != 2 (expected)"


@pytest.mark.parametrize(
    ("group", "metrics"),
    [("", {}), ("a.b", {}), ("training", {"epoch": "three"}), ("validation", {"epochs": [1]})],
)
def test_malformed_report_is_refused(world, trial, group, metrics):
    world.client.report(trial, group, 1, metrics, status=400)


def test_report_of_an_unknown_trial_is_404(client):
    assert client.report(9, "training", 1, {}, status=404)["error"]["error"] == "trial '9' not found"


def test_profiler_rows_have_no_step_and_stay_out_of_views(world, trial):
    for _ in range(2):
        world.client.report(trial, "gpu", None, {"agent": {"gpu0": 0.5}})
    assert rows(world.client, trial, "gpu") == []
    assert "gpu" not in world.client.trial(trial)["summaryMetrics"]


def test_nan_is_never_the_best(world, trial):
    client = world.client
    path = "/api/v1/experiments/1/searcher/best_searcher_validation_metric"
    client.get(path, status=404)
    client.report(trial, "validation", 1, {"loss": "NaN"})
    client.get(path, status=404)
    client.report(trial, "validation", 2, {"loss": 3.0})
    client.report(trial, "validation", 3, {"loss": "NaN"})
    assert client.get(path) == {"metric": 3.0}
    assert client.trial(trial)["bestValidation"]["totalBatches"] == 2


def test_best_is_the_largest_where_larger_is_better(world):
    config = SINGLE.replace("metric: loss", "metric: acc, smaller_is_better: false")
    experiment_id, trial, _ = world.launch(config)
    for steps, acc in ((1, 0.5), (2, 0.9), (3, 0.7)):
        world.client.report(trial["id"], "validation", steps, {"acc": acc})
    path = f"/api/v1/experiments/{experiment_id}/searcher/best_searcher_validation_metric"
    assert world.client.get(path) == {"metric": 0.9}
    assert world.client.experiment(experiment_id)["bestTrialSearcherMetric"] == 0.9


def test_validation_without_the_searchers_metric_is_pointed_out_once(world, trial):
    for steps in (1, 2):
        world.client.report(trial, "validation", steps, {"acc": 1.0})
    (line,) = [one for one in world.client.log(trial) if one["source"] == "master"][:1]
    assert "`loss`" in line["log"]
    assert "`acc`" in line["log"]


@pytest.mark.parametrize("nested", [False, True])
def test_old_clients_report_too(world, trial, nested):
    metrics = {"avgMetrics": {"loss": 0.5}} if nested else {"loss": 0.5}
    body = {"trial_run_id": 1, "steps_completed": 10, "metrics": metrics}
    world.client.post(f"/api/v1/trials/{trial}/validation_metrics", body)
    world.client.post(f"/api/v1/trials/{trial}/training_metrics", body)
    assert world.client.trial(trial)["searcherMetricValue"] == 0.5
    assert rows(world.client, trial, "training")[0]["metrics"]["avg_metrics"] == {"loss": 0.5}


def test_state_and_metadata_of_a_run_are_kept(world, trial):
    client = world.client
    client.post(f"/api/v1/trials/{trial}/runner/metadata", {"state": "training"})
    assert client.trial(trial)["runnerState"] == "training"
    assert client.get(f"/api/v1/runs/{trial}/metadata") == {"metadata": None}
    for metadata in ({"a": {"b": 1}}, {"c": 2}):
        assert client.post(f"/api/v1/runs/{trial}/metadata", {"metadata": metadata}) == {"metadata": metadata}
    assert client.get(f"/api/v1/runs/{trial}/metadata") == {"metadata": {"c": 2}}


def test_storage_has_one_number_however_often_a_run_starts(world, trial):
    section = {"type": "directory", "container_path": "/x"}
    body = {"runId": trial, "checkpointStorage": section}
    first = world.client.post("/api/v1/runs/start", body)["storageId"]
    assert first == world.client.post("/api/v1/runs/start", body)["storageId"]
    assert world.client.post("/api/v1/runs/start", {"runId": trial}) == {"storageId": None}
    world.client.post("/api/v1/runs/start", {"runId": 99}, status=404)


@pytest.mark.parametrize("ids", [[], [1, 1], [99]])
def test_stream_needs_trials_each_once(world, trial, ids):
    status = 404 if ids == [99] else 400
    params = {"group": "training", "trialIds": ids}
    world.client.get("/api/v1/trials/metrics/trial_metrics", params=params, status=status)


def test_stream_has_every_report_in_the_form_that_clients_read(client, trial):
    values = {"loss": 0.5, "odd": "NaN", "name": 'a "word"'}
    sent = {"trialRunId": 1, "stepsCompleted": 3, "reportTime": "2026-01-02T03:04:05.678912Z"}
    for group, batches in (("training", [{"loss": 0.25}]), ("validation", None), ("mine", None)):
        metrics = {"avgMetrics": values, "batchMetrics": batches}
        body = {"group": group, "metrics": {**sent, "metrics": metrics}}
        client.post(f"/api/v1/trials/{trial}/metrics", body)
        (row,) = rows(client, trial, group)
        stored = {"avg_metrics": values, "batch_metrics": batches}
        assert row == {
            "id": row["id"],
            "trialId": trial,
            "trialRunId": 1,
            "totalBatches": 3,
            "endTime": "2026-01-02T03:04:05.678000Z",
            "group": group,
            "archived": False,
            "metrics": {"validation_metrics": values} if group == "validation" else stored,
        }
