"""Experiments that were over and go on: which trials run again, and what they are told."""

from __future__ import annotations

import os
import signal
import threading
import time

import httpx
import pytest

from det_keras.master import process
from master.fakes import eventually

SINGLE = """\
entrypoint: python3 train.py
max_restarts: 1
hyperparameters: {lr: 0.1}
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""
SEARCH = """\
entrypoint: python3 train.py
max_restarts: 0
hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}
searcher: {name: random, metric: loss, max_trials: 3, max_concurrent_trials: 2}
"""
HALVING = """\
entrypoint: python3 train.py
max_restarts: 0
hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}
searcher: {name: async_halving, metric: loss, num_rungs: 2, max_trials: 2, max_length: {batches: 40}}
"""
CHECKPOINT = "478c0cf8-3f1f-4b3d-9f46-6d1ba7a7ee73"


def go_on(client, number, config="", **options):
    return client.post("/api/v1/experiments/continue", {"id": number, "overrideConfig": config}, **options)


def run_to_its_end(world, trial, run_id=1, code=0):
    """Let a trial's process exit, and return when the master knows."""
    allocation = world.wait_for_launch(trial, run_id)
    world.pool.finish(allocation, code)
    eventually(lambda: world.client.get(f"/api/v1/allocations/{allocation}")["allocation"]["endTime"])


@pytest.fixture
def ended(world):
    """An experiment whose only trial came to its end and left a checkpoint."""
    number, trial, allocation = world.launch(SINGLE)
    body = {"uuid": CHECKPOINT, "taskId": trial["taskId"], "allocationId": allocation}
    world.client.post("/api/v1/checkpoints", {**body, "metadata": {"steps_completed": 10}})
    world.client.report(trial["id"], "training", 10, {"loss": 1.0})
    world.pool.say(allocation, "first life\n")
    done = {"op": {"length": 10}, "searcherMetric": 1.0}
    world.client.post(f"/api/v1/trials/{trial['id']}/searcher/completed_operation", done)
    world.pool.finish(allocation)
    world.client.wait_for_state(number, "COMPLETED")
    return number


def test_completed_single_trial_goes_on_at_its_checkpoint_in_a_task_of_its_own(world, client, ended):
    (before,) = client.trials(ended)
    answer = go_on(client, ended)
    assert answer["experiment"]["state"] in ("STATE_QUEUED", "STATE_STARTING", "STATE_RUNNING")
    assert (answer["experiment"]["progress"], answer["experiment"]["endTime"]) == (0.0, None)
    (trial,) = client.trials(ended)
    assert trial["id"] == before["id"]
    assert trial["taskId"] == f"{before['taskId']}-1"
    assert trial["taskIds"] == [before["taskId"], trial["taskId"]]
    allocation = world.wait_for_launch(trial, 2)
    variables = world.pool.launched[allocation].variables
    assert (variables["DET_LATEST_CHECKPOINT"], variables["DET_STEPS_COMPLETED"]) == (CHECKPOINT, "10")
    first = world.pool.launched[f"{before['taskId']}.1"].variables
    assert {name: variables[name] for name in ("DET_HPARAMS", "DET_TRIAL_SEED")} == {
        name: first[name] for name in ("DET_HPARAMS", "DET_TRIAL_SEED")
    }
    world.pool.say(allocation, "second life\n")
    eventually(lambda: len(client.log(trial["id"])) == 2)
    assert [line["log"] for line in client.log(trial["id"], follow=False)] == [
        "first life\n",
        "second life\n",
    ]
    run_to_its_end(world, trial, 2)
    assert client.wait_for_state(ended, "COMPLETED")["progress"] == 1.0
    go_on(client, ended)
    assert client.trials(ended)[0]["taskId"] == f"{before['taskId']}-2"


def test_new_length_and_hyperparameters_hold_when_it_goes_on(world, client, ended):
    changes = "hyperparameters: {lr: 0.01}\nsearcher: {max_length: {batches: 25}}\n"
    go_on(client, ended, changes)
    (trial,) = client.trials(ended)
    assert trial["hparams"] == {"lr": 0.01}
    operation = client.get(f"/api/v1/trials/{trial['id']}/searcher/operation")
    assert (operation["op"]["validateAfter"]["length"], operation["completed"]) == ("25", False)
    config = client.experiment(ended)["config"]
    assert (config["max_restarts"], config["searcher"]["metric"]) == (1, "loss")
    assert config["entrypoint"] == "python3 train.py"


def test_failed_trial_has_all_of_its_restarts_again(world, client):
    number, trial, _ = world.launch(SINGLE)
    for run_id in (1, 2):
        run_to_its_end(world, trial, run_id, code=1)
    client.wait_for_state(number, "ERROR")
    go_on(client, number)
    (trial,) = client.trials(number)
    assert trial["restarts"] == 0
    for run_id in (3, 4):
        run_to_its_end(world, trial, run_id, code=1)
    client.wait_for_state(number, "ERROR")


def test_only_trials_that_did_not_complete_run_again_and_the_search_ends_after_them(world, client):
    number = client.create(SEARCH)
    first, second = client.trials(number)
    run_to_its_end(world, first)
    run_to_its_end(world, second, code=1)
    third = eventually(lambda: len(found := client.trials(number)) == 3 and found[2])
    run_to_its_end(world, third)
    client.wait_for_state(number, "COMPLETED")
    go_on(client, number)
    states = [one["state"] for one in client.trials(number)]
    assert (states[0], states[2]) == ("STATE_COMPLETED", "STATE_COMPLETED")
    assert client.trials(number)[0]["taskId"] == first["taskId"]
    run_to_its_end(world, client.trials(number)[1], 2)
    client.wait_for_state(number, "COMPLETED")
    # The search drew no further trial for the one that ran twice.
    assert [one["state"] for one in client.trials(number)] == ["STATE_COMPLETED"] * 3
    refused = go_on(client, number, status=400)
    assert "all trials completed" in refused["error"]["error"]


def test_search_that_was_cut_off_goes_on_where_it_was(world, client):
    number = client.create(SEARCH)
    first, _ = client.trials(number)
    run_to_its_end(world, first)
    third = eventually(lambda: len(found := client.trials(number)) == 3 and found[2])
    world.wait_for_launch(third)
    client.move(number, "kill")
    client.wait_for_state(number, "CANCELED")
    go_on(client, number)
    for trial in client.trials(number)[1:]:
        run_to_its_end(world, trial, 2)
    client.wait_for_state(number, "COMPLETED")
    assert len(client.trials(number)) == 3


def test_search_that_compares_goes_on_with_those_that_were_cut_off_only(world, client):
    number = client.create(HALVING)
    failed, cut_off = client.trials(number)
    run_to_its_end(world, failed, code=1)
    world.wait_for_launch(cut_off)
    client.move(number, "kill")
    client.wait_for_state(number, "CANCELED")
    go_on(client, number)
    shown = client.trials(number)
    assert shown[0]["state"] == "STATE_ERROR"
    assert shown[1]["taskId"] == f"{cut_off['taskId']}-1"
    world.wait_for_launch(shown[1], 2)


def test_single_experiment_that_was_cancelled_goes_on(world, client):
    number, *_ = world.launch(SINGLE)
    client.move(number, "kill")
    client.wait_for_state(number, "CANCELED")
    go_on(client, number)
    run_to_its_end(world, client.trials(number)[0], 2)
    client.wait_for_state(number, "COMPLETED")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("searcher: {name: random, metric: loss, max_trials: 3}\n", "must stay `single`"),
        ("searcher: {name: random, max_trials: 3}\n", "must stay `single`"),
        ("searcher: {source_trial_id: 99999}\n", "`searcher.source_trial_id` cannot change"),
        ("resources: {slots_per_trial: 99}\n", "slots requested exceed capacity"),
        ("searcher: {nonsense: 1}\n", "nonsense"),
        ("- a list\n", "mapping"),
        ("{", "YAML"),
    ],
    ids=[
        "another searcher",
        "another searcher in part",
        "another source",
        "too many slots",
        "unknown field",
        "no mapping",
        "no YAML",
    ],
)
def test_config_that_cannot_be_leaves_the_experiment_ended(client, ended, config, words):
    before = client.experiment(ended)
    refused = go_on(client, ended, config, status=400)
    assert words in refused["error"]["error"]
    after = client.experiment(ended)
    assert {**after, "duration": 0} == {**before, "duration": 0}


def test_changes_of_comments_alone_change_nothing(client, ended):
    before = client.experiment(ended)["config"]
    go_on(client, ended, "# max_restarts: 3\n")
    assert client.experiment(ended)["config"] == before


def test_search_does_not_change_its_config(world, client):
    number = client.create(SEARCH)
    client.move(number, "kill")
    client.wait_for_state(number, "CANCELED")
    refused = go_on(client, number, "max_restarts: 3\n", status=400)
    assert "experiment with the searcher `single`" in refused["error"]["error"]


def test_what_is_not_over_archived_or_unknown_is_not_continued(client, ended):
    number = client.create(SINGLE, activate=False)
    assert "PAUSED" in go_on(client, number, status=400)["error"]["error"]
    client.move(ended, "archive")
    assert "archived" in go_on(client, ended, status=400)["error"]["error"]
    go_on(client, 99, status=404)


def test_deleting_a_continued_experiment_takes_all_of_its_tasks_along(world, client, ended):
    (before,) = client.trials(ended)
    go_on(client, ended)
    (trial,) = client.trials(ended)
    run_to_its_end(world, trial, 2)
    client.wait_for_state(ended, "COMPLETED")
    client.call("DELETE", f"/api/v1/experiments/{ended}")
    eventually(lambda: client.get("/api/v1/experiments")["experiments"] == [])
    for task_id in (before["taskId"], trial["taskId"]):
        client.get(f"/api/v1/tasks/{task_id}", status=404)
    assert {f"{before['taskId']}.1", f"{trial['taskId']}.2"} <= set(world.pool.removed)


@pytest.mark.process
@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.02])
def test_master_that_is_killed_meanwhile_leaves_it_ended_or_going_on(real, delay_s):
    config = "entrypoint: echo again\nsearcher: {name: single, metric: loss}\n"
    number = real.client.create(config)
    real.client.wait_for_state(number, "COMPLETED")
    (before,) = real.client.trials(number)
    answers: list[int] = []

    def ask():
        body = b'{"id": %d}' % number
        headers = {"Authorization": f"Bearer {real.client.token}"}
        try:
            path = "/api/v1/experiments/continue"
            answers.append(real.http.post(path, content=body, headers=headers).status_code)
        except httpx.HTTPError:
            answers.append(0)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(delay_s)
    os.kill(real.running.pid, signal.SIGKILL)
    asking.join(timeout=30)
    eventually(lambda: process.find(real.home) is None)
    real.http.close()
    real.start()
    (trial,) = real.client.trials(number)
    if trial["taskId"] == before["taskId"]:
        # Nothing of it happened, and so nobody was told that it did.
        assert answers == [0]
        assert real.client.experiment(number)["state"] == "STATE_COMPLETED"
        go_on(real.client, number)
    real.client.wait_for_state(number, "COMPLETED", 30)
    assert real.client.trials(number)[0]["taskId"] == f"{before['taskId']}-1"
    assert [line["log"] for line in real.client.log(trial["id"])].count("again\n") == 2
