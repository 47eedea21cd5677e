"""Experiments that report from outside: what the master knows of them, and when it gives them up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from det_keras.master.database.models import TrialRow
from det_keras.master.experiments.unmanaged import LOST_AFTER
from det_keras.protocol.values import now
from master.fakes import eventually

CONFIG = "name: outside\nsearcher: {name: single, metric: loss}\n"


def create(client, **fields):
    answer = client.post("/api/v1/experiments", {"config": CONFIG, "unmanaged": True, **fields})
    return answer["experiment"]["id"]


def put(client, external_id):
    path = f"/api/v1/experiments/by-external-id/{external_id}"
    return client.call("PUT", path, {"config": CONFIG, "unmanaged": True})["experiment"]["id"]


def add_trial(client, experiment_id, **hparams):
    body = {"experimentId": experiment_id, "hparams": hparams, "unmanaged": True}
    return client.post("/api/v1/trials", body)["trial"]


def start(client, trial_id, *, resume=True):
    return client.post(f"/api/v1/trials/{trial_id}/start", {"trialId": trial_id, "resume": resume})


def say(client, trial_id, state=None, **options):
    body = {"trialId": trial_id, **({} if state is None else {"state": f"STATE_{state}"})}
    return client.call("PATCH", f"/api/v1/trials/{trial_id}", body, **options)


@pytest.fixture
def trial(client):
    """A trial that runs somewhere."""
    trial = add_trial(client, create(client), lr=0.1)
    start(client, trial["id"])
    return trial


def make_silent(world, trial_id, time=LOST_AFTER + timedelta(seconds=1)):
    """Let so much time pass since a trial was heard of."""
    with world.master.store.writing() as tx:
        tx.get(TrialRow, trial_id).heartbeat_at = now() - time


def test_experiment_needs_no_entrypoint_and_is_neither_queued_nor_launched(world, client):
    experiment_id = create(client)
    trial = add_trial(client, experiment_id, lr=0.1)
    assert (trial["state"], trial["hparams"]) == ("STATE_RUNNING", {"lr": 0.1})
    shown = client.experiment(experiment_id)
    assert (shown["state"], shown["unmanaged"], shown["numTrials"]) == ("STATE_RUNNING", True, 1)
    # One that the master runs is launched after everything that was made before it.
    world.launch()
    assert list(world.pool.launched) == [f"{client.trials(2)[0]['taskId']}.1"]
    assert [job["full"]["entityId"] for job in client.get("/api/v1/job-queues-v2")["jobs"]] == ["2"]


def test_state_of_the_experiment_follows_from_its_trials(client):
    experiment_id = create(client)
    first, second = (add_trial(client, experiment_id)["id"] for _ in range(2))
    say(client, first, "ERROR")
    assert client.experiment(experiment_id)["state"] == "STATE_RUNNING"
    say(client, second, "COMPLETED")
    ended = client.experiment(experiment_id)
    assert (ended["state"], ended["progress"]) == ("STATE_COMPLETED", 1.0)
    assert ended["endTime"]
    third = add_trial(client, experiment_id)["id"]
    again = client.experiment(experiment_id)
    assert (again["state"], again["endTime"]) == ("STATE_RUNNING", None)
    say(client, third, "ERROR")
    assert client.experiment(experiment_id)["state"] == "STATE_COMPLETED"


def test_only_failed_trials_make_a_failed_experiment(client, trial):
    say(client, trial["id"], "ERROR")
    assert client.experiment(trial["experimentId"])["state"] == "STATE_ERROR"


def test_reports_count_and_the_next_run_goes_on_at_the_latest_checkpoint(client, trial):
    number = trial["id"]
    for step in (1, 2, 3):
        client.report(number, "training", step, {"loss": 1 / step})
    client.report(number, "validation", 2, {"loss": 0.5})
    checkpoint = {
        "uuid": "478c0cf8-3f1f-4b3d-9f46-6d1ba7a7ee73",
        "taskId": trial["taskId"],
        "metadata": {"steps_completed": 2},
        "resources": {"a": "3"},
    }
    client.post("/api/v1/checkpoints", checkpoint)
    assert client.trial(number)["searcherMetricValue"] == 0.5
    again = start(client, number)
    assert again == {"trialRunId": 2, "latestCheckpoint": checkpoint["uuid"], "stepsCompleted": 2}
    client.report(number, "training", 3, {"loss": 7.0}, run_id=2)
    assert client.trial(number)["summaryMetrics"]["avg_metrics"]["loss"]["last"] == 7.0
    assert client.report(number, "training", 4, {"loss": 1.0}, run_id=1, status=400)
    anew = start(client, number, resume=False)
    assert anew == {"trialRunId": 3, "latestCheckpoint": None, "stepsCompleted": 0}


def test_experiment_and_trial_are_found_again_by_their_external_ids(client):
    assert put(client, "mine") == put(client, "mine") != put(client, "other")
    body = {"createTrialRequest": {"experimentId": put(client, "mine")}, "externalTrialId": "one"}
    first = client.call("PUT", "/api/v1/trials", body)["trial"]
    assert client.call("PUT", "/api/v1/trials", body)["trial"] == {
        **first,
        "wallClockTime": pytest.approx(0, abs=10),
    }
    other = {**body["createTrialRequest"], "experimentId": put(client, "other")}
    found = client.call("PUT", "/api/v1/trials", {**body, "createTrialRequest": other})["trial"]
    assert found["id"] != first["id"]
    assert client.experiment(put(client, "mine"))["externalExperimentId"] == "mine"


def test_trial_that_falls_silent_is_lost_and_comes_back_when_it_is_heard_of(world, client, trial):
    make_silent(world, trial["id"])
    eventually(lambda: client.trial(trial["id"])["state"] == "STATE_ERROR")
    assert client.experiment(trial["experimentId"])["state"] == "STATE_ERROR"
    assert "Trial 1 has not reported for 5 minutes" in client.log(trial["id"])[-1]["message"]
    say(client, trial["id"])
    assert client.trial(trial["id"])["state"] == "STATE_RUNNING"
    back = client.experiment(trial["experimentId"])
    assert (back["state"], back["endTime"]) == ("STATE_RUNNING", None)


def test_trial_that_was_lost_may_still_say_how_it_ended(world, client, trial):
    make_silent(world, trial["id"])
    eventually(lambda: client.trial(trial["id"])["state"] == "STATE_ERROR")
    say(client, trial["id"], "COMPLETED")
    assert client.experiment(trial["experimentId"])["state"] == "STATE_COMPLETED"


def test_heartbeat_that_was_on_its_way_brings_nobody_back(client, trial):
    say(client, trial["id"], "COMPLETED")
    say(client, trial["id"])
    assert client.trial(trial["id"])["state"] == "STATE_COMPLETED"


def test_silence_while_the_master_was_away_does_not_count(make_world):
    world = make_world()
    trial = add_trial(world.client, create(world.client))
    make_silent(world, trial["id"], LOST_AFTER - timedelta(seconds=1))
    make_world.stop()
    with_master = make_world()
    with with_master.master.store.reading() as session:
        assert now() - session.get(TrialRow, trial["id"]).heartbeat_at < timedelta(minutes=1)


def test_user_ends_what_he_has_no_script_for_any_more(client, trial):
    client.move(trial["experimentId"], "kill")
    say(client, trial["id"])
    assert client.trial(trial["id"])["state"] == "STATE_CANCELED"
    assert client.experiment(trial["experimentId"])["state"] == "STATE_CANCELED"
    empty = create(client)
    client.move(empty, "cancel")
    assert client.experiment(empty)["state"] == "STATE_CANCELED"


@pytest.mark.parametrize("verb", ["cancel", "kill"])
def test_experiment_that_a_user_ends_is_canceled_though_some_of_its_trials_were_completed(
    world, client, verb
):
    experiment_id = create(client)
    done, lost, running = (add_trial(client, experiment_id)["id"] for _ in range(3))
    client.post(f"/api/v1/trials/{done}/progress", {"progress": 1.0, "isRaw": True})
    say(client, done, "COMPLETED")
    make_silent(world, lost)
    eventually(lambda: client.trial(lost)["state"] == "STATE_ERROR")
    client.move(experiment_id, verb)
    ended = client.experiment(experiment_id)
    assert (ended["state"], ended["progress"]) == ("STATE_CANCELED", pytest.approx(1 / 3))
    assert ended["endTime"]
    states = [client.trial(one)["state"] for one in (done, lost, running)]
    assert states == ["STATE_COMPLETED", "STATE_ERROR", "STATE_CANCELED"]
    for late in (lost, running):
        say(client, late, "COMPLETED")
    assert client.experiment(experiment_id)["state"] == "STATE_CANCELED"


@pytest.mark.parametrize("verb", ["pause", "activate"])
def test_what_only_the_user_can_do_is_refused(client, trial, verb):
    refused = client.move(trial["experimentId"], verb, status=400)
    assert "its script runs outside of this master" in refused["error"]["error"]


def test_trials_of_the_master_are_not_moved_from_outside(client):
    experiment_id = client.create(activate=False)
    trial_id = client.trials(experiment_id)[0]["id"]
    refused = say(client, trial_id, "COMPLETED", status=400)
    assert "The master runs experiment" in refused["error"]["error"]
    client.post(f"/api/v1/trials/{trial_id}/start", status=400)
    client.post("/api/v1/trials", {"experimentId": experiment_id}, status=400)


def test_state_that_a_script_cannot_be_in_is_refused(client, trial):
    assert "PAUSED" in say(client, trial["id"], "PAUSED", status=400)["error"]["error"]
    say(client, trial["id"], "NONSENSE", status=400)


def test_search_is_asked_nothing(client, trial):
    client.get(f"/api/v1/trials/{trial['id']}/searcher/operation", status=404)
    done = {"op": {"length": 5}, "searcherMetric": 1.0}
    client.post(f"/api/v1/trials/{trial['id']}/searcher/completed_operation", done, status=400)
    client.post(f"/api/v1/trials/{trial['id']}/progress", {"progress": 0.25, "isRaw": True})
    assert client.experiment(trial["experimentId"])["progress"] == 0.25


def test_log_lines_come_as_a_bare_list(client, trial):
    line = {"task_id": trial["taskId"], "timestamp": "2026-01-02T03:04:05+00:00", "rank": "3"}
    client.post("/task-logs", [{**line, "log": "one\n"}, {**line, "log": "two\n"}])
    assert [(row["log"], row["rankId"]) for row in client.log(trial["id"])] == [("one\n", 3), ("two\n", 3)]
    unknown = client.post("/task-logs", [{"task_id": "nobody", "log": "x\n"}], status=404)
    assert unknown == {"message": "task 'nobody' not found"}


def test_deleting_takes_everything_along(client, trial):
    say(client, trial["id"], "COMPLETED")
    client.call("DELETE", f"/api/v1/experiments/{trial['experimentId']}")
    eventually(lambda: client.get("/api/v1/experiments")["experiments"] == [])
