"""Checkpoints: reported, listed, pruned, deleted and downloaded."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from det_keras.storage import DirectoryStorage
from master.fakes import SINGLE, eventually

KEEP_ALL = (
    SINGLE + "checkpoint_storage: {save_experiment_best: 99, save_trial_best: 99, save_trial_latest: 99}\n"
)


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def store(world, trial, number: int, steps: int, **changes) -> None:
    """Write a checkpoint and report it."""
    with DirectoryStorage(world.home.checkpoints).store_path(uuid(number)) as path:
        (path / "weights").write_bytes(b"x" * 10)
        (path / "sub").mkdir()
        (path / "sub" / "more").write_bytes(b"y")
    report(world, trial, number, steps, **changes)


def report(world, trial, number: int, steps: object, *, status: int = 200, **changes) -> None:
    body = {
        "uuid": uuid(number),
        "taskId": trial["taskId"],
        "allocationId": f"{trial['taskId']}.1",
        "resources": {"weights": "10", "sub/": "0", "sub/more": 1},
        "metadata": {"steps_completed": steps, "framework": "none"},
        **changes,
    }
    world.client.post("/api/v1/checkpoints", body, status=status)


def listed(world, experiment_id: int, **params) -> list[int]:
    answer = world.client.get(f"/api/v1/experiments/{experiment_id}/checkpoints", params=params)
    return [int(one["uuid"][-3:]) for one in answer["checkpoints"]]


def states(world, experiment_id: int) -> dict[int, str]:
    answer = world.client.get(f"/api/v1/experiments/{experiment_id}/checkpoints")
    return {int(one["uuid"][-3:]): one["state"] for one in answer["checkpoints"]}


def test_checkpoint_is_described_with_the_metrics_of_its_batch(world):
    experiment_id, trial, _ = world.launch()
    world.client.report(trial["id"], "validation", 10, {"loss": 0.5})
    world.client.report(trial["id"], "training", 10, {"loss": 0.7})
    store(world, trial, 1, 10)
    shown = world.client.get(f"/api/v1/checkpoints/{uuid(1)}")["checkpoint"]
    assert shown["state"] == "STATE_COMPLETED"
    assert shown["resources"] == {"weights": "10", "sub/": "0", "sub/more": "1"}
    assert shown["metadata"] == {"steps_completed": 10, "framework": "none"}
    assert shown["training"]["experimentId"] == experiment_id
    assert shown["training"]["experimentConfig"]["checkpoint_storage"]["type"] == "directory"
    assert shown["training"]["searcherMetric"] == 0.5
    assert shown["training"]["trainingMetrics"]["avgMetrics"] == {"loss": 0.7}
    assert world.client.trial(trial["id"])["totalCheckpointSize"] == "11"
    assert world.client.trial(trial["id"])["bestCheckpoint"]["uuid"] == uuid(1)


def test_same_report_twice_changes_nothing(world):
    experiment_id, trial, _ = world.launch()
    for _ in range(2):
        report(world, trial, 1, 10)
    assert world.client.experiment(experiment_id)["checkpointCount"] == 1


def test_malformed_reports_are_refused(world):
    _, trial, _ = world.launch()
    report(world, trial, 1, 10, status=400, uuid="not-a-uuid")
    report(world, trial, 1, 10, status=404, taskId="nobody")
    report(world, trial, 1, 10, status=400, state="STATE_ERROR")
    report(world, trial, 1, 10, status=400, metadata={})
    for steps in ("ten", -1, 1.5, True):
        report(world, trial, 1, steps, status=400)
    world.client.get("/api/v1/checkpoints/nonsense", status=400)
    world.client.get(f"/api/v1/checkpoints/{uuid(1)}", status=404)


def test_restarted_trial_gets_the_complete_checkpoint_with_the_most_batches(world):
    _, trial, first = world.launch()
    for number, steps in ((1, 10), (2, 30), (3, 20)):
        store(world, trial, number, steps)
    world.client.call("PATCH", "/api/v1/checkpoints", {"checkpoints": [{"uuid": uuid(2), "resources": {}}]})
    assert world.client.get(f"/api/v1/checkpoints/{uuid(2)}")["checkpoint"]["state"] == "STATE_DELETED"
    world.pool.finish(first, 1)
    variables = world.pool.launched[world.wait_for_launch(trial, 2)].variables
    assert (variables["DET_LATEST_CHECKPOINT"], variables["DET_STEPS_COMPLETED"]) == (uuid(3), "20")


def test_list_is_ordered_as_clients_ask(world):
    experiment_id, trial, _ = world.launch()
    for number, steps, loss in ((1, 10, 0.9), (2, 20, 0.1), (3, 30, None), (4, 40, 0.5)):
        if loss is not None:
            world.client.report(trial["id"], "validation", steps, {"loss": loss, "acc": 1 - loss})
        store(world, trial, number, steps)
    assert listed(world, experiment_id) == [1, 2, 3, 4]
    assert listed(world, experiment_id, sortByAttr="SORT_BY_SEARCHER_METRIC") == [2, 4, 1, 3]
    assert listed(world, experiment_id, sortByAttr="SORT_BY_SEARCHER_METRIC", limit=1) == [2]
    assert listed(world, experiment_id, sortByMetric="acc", orderBy="ORDER_BY_DESC") == [2, 4, 1, 3]
    assert listed(world, experiment_id, sortByAttr="SORT_BY_BATCH_NUMBER", orderBy="ORDER_BY_DESC") == [
        4,
        3,
        2,
        1,
    ]
    assert listed(world, experiment_id, states="STATE_DELETED") == []
    path = f"/api/v1/trials/{trial['id']}/checkpoints"
    best = world.client.get(path, params={"sortByAttr": "SORT_BY_SEARCHER_METRIC"})["checkpoints"][0]
    assert best["uuid"] == uuid(2)


@pytest.mark.parametrize(
    "metadata", [{}, {"steps_completed": "many"}, {"steps_completed": None, "note": "x"}]
)
def test_checkpoint_keeps_its_batches_whatever_its_metadata_become(world, metadata):
    experiment_id, trial, _ = world.launch()
    world.client.report(trial["id"], "validation", 20, {"loss": 0.5})
    for number, steps in ((1, 20), (2, 10)):
        store(world, trial, number, steps)
    body = {"checkpoint": {"metadata": metadata}}
    answer = world.client.post(f"/api/v1/checkpoints/{uuid(1)}/metadata", body)
    assert answer["checkpoint"]["metadata"] == {**metadata, "steps_completed": 20}
    assert listed(world, experiment_id, sortByAttr="SORT_BY_BATCH_NUMBER") == [2, 1]
    assert listed(world, experiment_id) == [2, 1]
    shown = world.client.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"]
    assert [one["metadata"]["steps_completed"] for one in shown] == [10, 20]
    best = world.client.trial(trial["id"])["bestCheckpoint"]
    assert best["metadata"]["steps_completed"] == 20


def test_best_comes_first_where_larger_is_better(world):
    config = SINGLE.replace("metric: loss", "metric: acc, smaller_is_better: false")
    experiment_id, trial, _ = world.launch(config)
    for number, acc in ((1, 0.1), (2, 0.9)):
        world.client.report(trial["id"], "validation", number, {"acc": acc})
        store(world, trial, number, number)
    assert listed(world, experiment_id, sortByAttr="SORT_BY_SEARCHER_METRIC") == [2, 1]


def test_finished_experiment_is_pruned_and_records_stay(world):
    experiment_id, trial, first = world.launch()
    for number, loss in ((1, 0.9), (2, 0.1), (3, 0.5), (4, 0.6)):
        world.client.report(trial["id"], "validation", number * 10, {"loss": loss})
        store(world, trial, number, number * 10)
    world.pool.finish(first)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    expected = {1: "STATE_DELETED", 2: "STATE_COMPLETED", 3: "STATE_DELETED", 4: "STATE_COMPLETED"}
    eventually(lambda: states(world, experiment_id) == expected)
    assert sorted(path.name for path in world.home.checkpoints.iterdir()) == [uuid(2), uuid(4)]
    assert world.client.get(f"/api/v1/checkpoints/{uuid(1)}")["checkpoint"]["resources"] == {}


def test_pruning_that_a_master_left_undone_is_done_by_the_next(make_world, monkeypatch):
    monkeypatch.setattr("det_keras.master.services.garbage_collector.GarbageCollector.tidy", lambda _: None)
    world = make_world()
    experiment_id, trial, first = world.launch()
    for number in (1, 2, 3):
        store(world, trial, number, number)
    world.pool.finish(first)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    monkeypatch.undo()
    make_world.stop()
    again = make_world(world.pool)
    eventually(lambda: list(states(again, experiment_id).values()).count("STATE_DELETED") == 2)


def test_new_policy_prunes_a_finished_experiment_at_once(world):
    experiment_id, trial, first = world.launch(KEEP_ALL)
    for number in (1, 2, 3):
        store(world, trial, number, number)
    world.pool.finish(first)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    assert set(states(world, experiment_id).values()) == {"STATE_COMPLETED"}
    policy = {"saveExperimentBest": 0, "saveTrialBest": 0, "saveTrialLatest": 1}
    world.client.call("PATCH", f"/api/v1/experiments/{experiment_id}", {"checkpointStorage": policy})
    expected = {1: "STATE_DELETED", 2: "STATE_DELETED", 3: "STATE_COMPLETED"}
    eventually(lambda: states(world, experiment_id) == expected)


def test_warm_start_is_given_to_every_trial_and_survives_pruning(world):
    _, trial, first = world.launch(KEEP_ALL)
    store(world, trial, 1, 7)
    store(world, trial, 2, 6)
    world.pool.finish(first)
    world.client.wait_for_state(1, "COMPLETED")
    config = SINGLE.replace("metric: loss", f"metric: loss, source_trial_id: {trial['id']}")
    _, _, second = world.launch(config)
    variables = world.pool.launched[second].variables
    assert (variables["DET_LATEST_CHECKPOINT"], variables["DET_STEPS_COMPLETED"]) == (uuid(1), "0")
    nothing = {"saveExperimentBest": 0, "saveTrialBest": 0, "saveTrialLatest": 0}
    world.client.call("PATCH", "/api/v1/experiments/1", {"checkpointStorage": nothing})
    eventually(lambda: states(world, 1)[2] == "STATE_DELETED")
    assert states(world, 1)[1] == "STATE_COMPLETED"


@pytest.mark.parametrize("globs", [[""], ["../x"], ["/etc/*"]])
def test_glob_that_leaves_the_checkpoint_is_refused(world, globs):
    _, trial, _ = world.launch()
    store(world, trial, 1, 1)
    body = {"checkpointUuids": [uuid(1)], "checkpointGlobs": globs}
    world.client.post("/api/v1/checkpoints/rm", body, status=400)


def test_some_files_of_a_checkpoint_are_removed(world):
    experiment_id, trial, _ = world.launch()
    store(world, trial, 1, 1)
    body = {"checkpointUuids": [uuid(1)], "checkpointGlobs": ["sub/*"]}
    world.client.post("/api/v1/checkpoints/rm", body)
    eventually(lambda: states(world, experiment_id) == {1: "STATE_PARTIALLY_DELETED"})
    assert not (world.home.checkpoints / uuid(1) / "sub" / "more").exists()
    resources = world.client.get(f"/api/v1/checkpoints/{uuid(1)}")["checkpoint"]["resources"]
    assert "weights" in resources
    # What is left, and nothing of the storage's own.
    headers = {"Authorization": f"Bearer {world.client.token}", "Accept": "application/x-tar"}
    content = world.http.get(f"/checkpoints/{uuid(1)}", headers=headers).content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert {name.rstrip("/") for name in archive.getnames()} == {name.rstrip("/") for name in resources}


def test_deleted_checkpoint_leaves_its_record(world):
    experiment_id, trial, _ = world.launch()
    store(world, trial, 1, 1)
    world.client.call("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid(1)]})
    eventually(lambda: states(world, experiment_id) == {1: "STATE_DELETED"})
    assert not (world.home.checkpoints / uuid(1)).exists()
    headers = {"Authorization": f"Bearer {world.client.token}", "Accept": "application/gzip"}
    assert world.http.get(f"/checkpoints/{uuid(1)}", headers=headers).status_code == 404
    world.client.call("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid(9)]}, status=404)


def test_metadata_is_replaced_as_a_whole_but_for_the_batches(world):
    _, trial, _ = world.launch()
    store(world, trial, 1, 1)
    body = {"checkpoint": {"uuid": uuid(1), "metadata": {"mine": 1}, "state": "STATE_UNSPECIFIED"}}
    answer = world.client.post(f"/api/v1/checkpoints/{uuid(1)}/metadata", body)
    assert answer["checkpoint"]["metadata"] == {"mine": 1, "steps_completed": 1}
    assert answer["checkpoint"]["state"] == "STATE_COMPLETED"


@pytest.mark.parametrize(
    ("accept", "mode"),
    [("application/gzip", "r:gz"), ("application/x-tar", "r:"), ("application/zip", "zip")],
)
def test_checkpoint_is_downloaded_as_an_archive(world, accept, mode):
    _, trial, _ = world.launch()
    store(world, trial, 1, 1)
    headers = {"Authorization": f"Bearer {world.client.token}", "Accept": accept}
    response = world.http.get(f"/checkpoints/{uuid(1)}", headers=headers)
    assert response.status_code == 200
    assert "content-encoding" not in response.headers
    if mode == "zip":
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            assert archive.read("weights") == b"x" * 10
            assert "sub/more" in archive.namelist()
        return
    with tarfile.open(fileobj=io.BytesIO(response.content), mode=mode) as archive:
        member = archive.extractfile("weights")
        assert member is not None
        assert member.read() == b"x" * 10
        assert "sub/more" in archive.getnames()
