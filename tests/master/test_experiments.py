"""Experiments over the API: made, moved through their states, judged, changed and deleted."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from det_keras.master.api import allocations as allocations_api
from master.fakes import SINGLE, FakePool, eventually, file_entry

RANDOM = (
    "entrypoint: python3 train.py\nhyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n"
    "searcher: {name: random, metric: loss, max_trials: 3, max_concurrent_trials: 2}\n"
)
NO_RESTARTS = SINGLE + "max_restarts: 0\n"


def test_new_experiment_runs_its_trial(world):
    experiment_id, trial, allocation_id = world.launch()
    variables = world.pool.launched[allocation_id].variables
    assert trial["experimentId"] == experiment_id
    assert variables["DET_TRIAL_ID"] == str(trial["id"])
    assert variables["DET_TRIAL_RUN_ID"] == "1"
    assert world.pool.launched[allocation_id].argv == ["sh", "-c", "python3 train.py"]
    eventually(lambda: world.client.experiment(experiment_id)["state"] == "STATE_RUNNING")
    world.pool.finish(allocation_id)
    done = world.client.wait_for_state(experiment_id, "COMPLETED")
    assert done["progress"] == 1.0
    assert done["endTime"] > done["startTime"]
    assert world.client.trial(trial["id"])["state"] == "STATE_COMPLETED"


def test_submitted_config_among_the_files_is_stored_without_secrets(client):
    config = SINGLE + "data: {secrets: {key: hunter2}}\n"
    files = [file_entry("const.yaml", config.encode()), file_entry("train.py", b"print()")]
    experiment_id = client.create(config, modelDefinition=files)
    archive = client.get(f"/api/v1/experiments/{experiment_id}/model_def")["b64Tgz"]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive))) as members:
        assert b"hunter2" not in members.extractfile("const.yaml").read()
        assert members.extractfile("train.py").read() == b"print()"


def test_answer_to_creation_is_complete(client):
    answer = client.post("/api/v1/experiments", {"config": SINGLE, "activate": False})
    experiment = answer["experiment"]
    assert experiment["state"] == "STATE_PAUSED"
    assert experiment["originalConfig"] == SINGLE
    assert experiment["numTrials"] == 1
    assert answer["config"]["searcher"]["name"] == "single"
    assert answer["warnings"] == []
    must = "id name state archived startTime username numTrials jobId projectId projectOwnerId searcherType"
    for key in must.split():
        assert experiment[key] is not None, key


def test_notices_of_the_config_reach_the_user(client):
    answer = client.post(
        "/api/v1/experiments", {"config": "entrypoint: python3 train.py\n", "activate": False}
    )
    assert any("searcher" in notice for notice in answer["notices"])


def test_all_problems_of_a_config_are_in_the_message(client):
    config = "entrypoint: a\nmax_restart: 3\nsearcher: {name: single}\nresources: {slots_per_trial: -1}\n"
    message = client.post("/api/v1/experiments", {"config": config}, status=400)["error"]["error"]
    for path in ("max_restart", "searcher.metric", "resources.slots_per_trial"):
        assert f"<config>.{path}" in message
    assert client.get("/api/v1/experiments")["experiments"] == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (SINGLE + "resources: {slots_per_trial: 3}\n", "this machine has 2"),
        (SINGLE + "checkpoint_storage: {type: tape, bucket: b}\n", "checkpoint_storage"),
        (SINGLE + "environment: {environment_variables: [DET_TRIAL_ID=7]}\n", "DET_TRIAL_ID"),
        ("searcher: {name: single, metric: loss}\n", "entrypoint"),
        (SINGLE.replace("metric: loss", "metric: loss, source_trial_id: 9"), "no trial 9"),
    ],
    ids=["too many slots", "no storage", "reserved variable", "no entrypoint", "no warm start"],
)
def test_config_that_cannot_run_here_is_refused_at_creation(client, config, words):
    assert words in client.post("/api/v1/experiments", {"config": config}, status=400)["error"]["error"]
    assert client.get("/api/v1/experiments")["pagination"]["total"] == 0


def test_validation_alone_stores_nothing(client):
    answer = client.post("/api/v1/experiments", {"config": SINGLE, "validateOnly": True})
    assert answer["experiment"]["state"] == "STATE_UNSPECIFIED"
    assert answer["config"]["max_restarts"] == 5
    assert client.get("/api/v1/experiments")["experiments"] == []
    client.post("/api/v1/experiments", {"config": "x: 1", "validateOnly": True}, status=400)


def test_secrets_reach_the_trial_and_nobody_else(world):
    config = SINGLE + "data: {secrets: {key: hunter2}}\n"
    experiment_id, _, allocation_id = world.launch(config)
    sent = json.loads(world.pool.launched[allocation_id].variables["DET_EXPERIMENT_CONFIG"])
    assert sent["data"]["secrets"] == {"key": "hunter2"}
    for path in (f"/api/v1/experiments/{experiment_id}", "/api/v1/experiments"):
        assert "hunter2" not in json.dumps(world.client.get(path))


def test_variables_of_the_config_are_set(world):
    config = SINGLE + "environment: {environment_variables: [A=1=2, OMP_NUM_THREADS=7]}\n"
    _, _, allocation_id = world.launch(config)
    variables = world.pool.launched[allocation_id].variables
    assert (variables["A"], variables["OMP_NUM_THREADS"]) == ("1=2", "7")


def test_paused_experiment_waits_for_activation(world):
    experiment_id = world.client.create(activate=False)
    (trial,) = world.client.trials(experiment_id)
    assert trial["state"] == "STATE_PAUSED"
    # It has not run yet, however long ago it was made.
    assert trial["wallClockTime"] == 0
    world.client.move(experiment_id, "pause")
    world.client.move(experiment_id, "activate")
    world.wait_for_launch(trial)


def test_pause_asks_the_trial_and_activation_runs_it_again(world):
    experiment_id, trial, first = world.launch()
    path = f"/api/v1/allocations/{first}/signals/preemption?timeout_seconds=0"
    assert world.client.get(path) == {"preempt": False}
    world.client.move(experiment_id, "pause")
    assert world.client.get(path) == {"preempt": True}
    world.client.post(f"/api/v1/allocations/{first}/signals/ack_preemption")
    world.pool.finish(first)
    eventually(lambda: world.client.get(f"/api/v1/allocations/{first}")["allocation"]["endTime"])
    paused = world.client.trial(trial["id"])
    assert paused["state"] == "STATE_PAUSED"
    assert world.client.trial(trial["id"])["wallClockTime"] == paused["wallClockTime"] > 0
    world.client.move(experiment_id, "activate")
    second = world.wait_for_launch(trial, 2)
    assert world.client.trial(trial["id"])["wallClockTime"] > paused["wallClockTime"]
    assert world.pool.launched[second].variables["DET_TRIAL_RUN_ID"] == "2"
    assert world.client.trial(trial["id"])["restarts"] == 0


def test_activation_before_the_paused_trial_has_left_runs_it_again_afterwards(world):
    experiment_id, trial, first = world.launch()
    world.client.move(experiment_id, "pause")
    world.client.move(experiment_id, "activate")
    world.client.post(f"/api/v1/allocations/{first}/signals/ack_preemption")
    world.pool.finish(first)
    world.wait_for_launch(trial, 2)


def test_trial_that_leaves_before_its_poll_looks_again_was_still_asked_to_stop(world, monkeypatch):
    experiment_id, _, first = world.launch()
    looked, is_gone, look = threading.Event(), threading.Event(), allocations_api._look

    def slow_look(master, allocation_id):
        if looked.is_set():
            is_gone.wait(30)
        seen = look(master, allocation_id)
        looked.set()
        return seen

    monkeypatch.setattr(allocations_api, "_look", slow_look)
    path = f"/api/v1/allocations/{first}/signals/preemption"
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(world.client.get, f"{path}?timeout_seconds=20")
        looked.wait(30)
        world.client.move(experiment_id, "pause")
        world.pool.finish(first)
        eventually(lambda: world.client.get(f"/api/v1/allocations/{first}")["allocation"]["endTime"])
        is_gone.set()
        assert poll.result() == {"preempt": True}
    assert world.client.get(f"{path}?timeout_seconds=0") == {"preempt": False}


def test_paused_trial_that_exits_without_acknowledging_is_done(world):
    experiment_id, trial, first = world.launch()
    world.client.move(experiment_id, "pause")
    world.pool.finish(first)
    eventually(lambda: world.client.trial(trial["id"])["state"] == "STATE_COMPLETED")
    world.client.wait_for_state(experiment_id, "COMPLETED")


def test_cancel_lets_the_trial_stop_by_itself(world):
    experiment_id, trial, first = world.launch()
    world.client.move(experiment_id, "cancel")
    assert world.client.experiment(experiment_id)["state"] == "STATE_STOPPING_CANCELED"
    world.pool.finish(first)
    world.client.wait_for_state(experiment_id, "CANCELED")
    assert world.client.trial(trial["id"])["state"] == "STATE_CANCELED"
    assert world.pool.kills == []


def test_trial_that_fails_while_it_is_cancelled_is_an_error(world):
    experiment_id, trial, first = world.launch()
    world.client.move(experiment_id, "cancel")
    world.pool.finish(first, 1)
    world.client.wait_for_state(experiment_id, "CANCELED")
    assert world.client.trial(trial["id"])["state"] == "STATE_ERROR"


def test_cancel_of_what_never_ran_ends_at_once(world):
    experiment_id = world.client.create(activate=False)
    world.client.move(experiment_id, "cancel")
    assert world.client.experiment(experiment_id)["state"] == "STATE_CANCELED"


def test_kill_after_cancel_is_stronger_and_cancel_after_kill_changes_nothing(world):
    world.pool.is_stubborn = True
    experiment_id, _, first = world.launch()
    world.client.move(experiment_id, "cancel")
    world.client.move(experiment_id, "kill")
    world.client.move(experiment_id, "cancel")
    assert world.client.experiment(experiment_id)["state"] == "STATE_STOPPING_KILLED"
    eventually(lambda: world.pool.kills)
    world.pool.finish(first, 137)
    world.client.wait_for_state(experiment_id, "CANCELED")


def test_kill_that_does_not_help_is_repeated_with_force(world, monkeypatch):
    monkeypatch.setattr("det_keras.master.services.dispatcher._KILL_AGAIN_S", 0.1)
    world.pool.is_stubborn = True
    experiment_id, _, first = world.launch()
    world.client.move(experiment_id, "kill")
    world.client.wait_for_state(experiment_id, "CANCELED")
    assert world.pool.kills[:2] == [(first, False), (first, True)]


def test_finished_experiment_takes_no_further_orders(world):
    experiment_id, _, first = world.launch()
    world.pool.finish(first)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    for verb, status in (
        ("pause", 400),
        ("activate", 400),
        ("cancel", 200),
        ("kill", 200),
        ("unarchive", 400),
    ):
        world.client.move(experiment_id, verb, status=status)
    assert world.client.experiment(experiment_id)["state"] == "STATE_COMPLETED"


def test_failures_are_restarted_until_max_restarts(world):
    experiment_id, trial, first = world.launch(SINGLE + "max_restarts: 1\n")
    world.pool.finish(first, 1)
    second = world.wait_for_launch(trial, 2)
    assert world.client.trial(trial["id"])["restarts"] == 1
    world.pool.finish(second, 1)
    world.client.wait_for_state(experiment_id, "ERROR")
    notes = [line["log"] for line in world.client.log(trial["id"])]
    assert "restart 1 of 1" in notes[0]
    assert "is not run again" in notes[1]


def test_lost_supervisor_costs_no_restart(world):
    experiment_id, trial, first = world.launch(NO_RESTARTS)
    world.pool.lose(first)
    second = world.wait_for_launch(trial, 2)
    world.pool.finish(second)
    world.client.wait_for_state(experiment_id, "COMPLETED")


def test_supervisors_lost_in_a_row_end_the_trial(world):
    world.pool.launch = lambda launch: world.pool.lose(launch.allocation_id)
    experiment_id = world.client.create(NO_RESTARTS)
    world.client.wait_for_state(experiment_id, "ERROR", 30)
    (trial,) = world.client.trials(experiment_id)
    runs = world.client.get(f"/api/v1/tasks/{trial['taskId']}")["task"]["allocations"]
    assert len(runs) == 21


def test_task_that_cannot_be_launched_is_an_error_at_once(world):
    world.pool.launch_error = OSError("No space left on device")
    experiment_id = world.client.create()
    world.client.wait_for_state(experiment_id, "ERROR")
    (trial,) = world.client.trials(experiment_id)
    assert "No space left" in world.client.log(trial["id"])[0]["log"]


def test_log_policy_that_cancels_retries_makes_a_failure_final(world):
    policy = "log_policies: [{name: luck, pattern: 'out of luck', action: cancel_retries}]\n"
    experiment_id, trial, first = world.launch(SINGLE + policy)
    world.pool.say(first, "we are out of luck today\n")
    eventually(lambda: world.client.trial(trial["id"])["logPolicyMatched"] == "luck")
    world.pool.finish(first, 1)
    world.client.wait_for_state(experiment_id, "ERROR")
    assert world.client.trial(trial["id"])["restarts"] == 0


# Each of the 2**35 ways to split the characters is tried by an engine that goes back.
SLOW_PATTERN, SLOW_LINE = "(a+)+$", "a" * 34 + "!"


def test_log_policy_with_a_pattern_that_branches_does_not_hold_up_the_master(world):
    policy = f"log_policies: [{{name: slow, pattern: '{SLOW_PATTERN}'}}]\n"
    _, trial, first = world.launch(SINGLE + policy)
    world.pool.say(first, f"{SLOW_LINE}\n")
    eventually(lambda: SLOW_LINE in [line["log"].strip() for line in world.client.log(trial["id"])])
    assert world.client.trial(trial["id"])["logPolicyMatched"] is None
    # The line's end is where the text ends, not behind the newline.
    world.pool.say(first, "aaa\n")
    eventually(lambda: world.client.trial(trial["id"])["logPolicyMatched"] == "slow")


def test_log_search_with_a_pattern_that_branches_does_not_hold_up_the_master(world):
    _, trial, first = world.launch()
    world.pool.say(first, f"{SLOW_LINE}\n")
    eventually(lambda: world.client.log(trial["id"]))
    query = {"searchText": SLOW_PATTERN, "enableRegex": "true"}
    assert world.client.log(trial["id"], **query) == []


def test_log_policy_that_looks_back_is_refused_when_the_config_is_submitted(world):
    policy = r"log_policies: [{name: twice, pattern: '(a)\1'}]" + "\n"
    answer = world.client.post("/api/v1/experiments", {"config": SINGLE + policy}, status=400)
    assert r"'(a)\\1' is not a regular expression in RE2's syntax" in answer["error"]["error"]


def test_invalid_hyperparameters_complete_the_trial_whatever_the_code(world):
    experiment_id, trial, first = world.launch()
    path = f"/api/v1/trials/{trial['id']}/early_exit"
    world.client.post(path, {"reason": "EXITED_REASON_LUCK"}, status=400)
    for _ in range(2):
        world.client.post(path, {"reason": "EXITED_REASON_INVALID_HP"})
    world.pool.finish(first, 1)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    assert world.client.trial(trial["id"])["state"] == "STATE_COMPLETED"
    world.client.post(path, {"reason": "EXITED_REASON_INVALID_HP"}, status=404)


def test_process_that_refused_its_hyperparameters_and_stays_is_killed(world, monkeypatch):
    monkeypatch.setattr("det_keras.master.experiments.controller._EARLY_EXIT_GRACE_S", 0.1)
    experiment_id, trial, first = world.launch()
    world.client.post(f"/api/v1/trials/{trial['id']}/early_exit", {"reason": "EXITED_REASON_INVALID_HP"})
    world.client.wait_for_state(experiment_id, "COMPLETED")
    assert world.pool.kills[0] == (first, False)


def test_random_search_replaces_invalid_and_runs_as_many_as_asked(world):
    experiment_id = world.client.create(RANDOM)
    done = 0
    while world.client.experiment(experiment_id)["state"] != "STATE_COMPLETED":
        for trial in world.client.trials(experiment_id):
            allocation = f"{trial['taskId']}.1"
            if trial["state"] == "STATE_RUNNING" and allocation not in world.pool.exits:
                if trial["id"] == 1:
                    path = f"/api/v1/trials/{trial['id']}/early_exit"
                    world.client.post(path, {"reason": "EXITED_REASON_INVALID_HP"})
                done += 1
                world.pool.finish(allocation)
    trials = world.client.trials(experiment_id)
    assert done == len(trials) == 4
    assert len({trial["hparams"]["lr"] for trial in trials}) == 4


def test_one_failed_trial_does_not_fail_the_search(world):
    experiment_id = world.client.create(RANDOM + "max_restarts: 0\n")
    while world.client.experiment(experiment_id)["state"] != "STATE_COMPLETED":
        for trial in world.client.trials(experiment_id):
            allocation = f"{trial['taskId']}.1"
            if allocation in world.pool.launched and allocation not in world.pool.exits:
                world.pool.finish(allocation, 1 if trial["id"] == 1 else 0)
    states = [trial["state"] for trial in world.client.trials(experiment_id)]
    assert sorted(states) == ["STATE_COMPLETED", "STATE_COMPLETED", "STATE_ERROR"]


def test_killed_trial_alone_leaves_the_search_going(world):
    experiment_id = world.client.create(RANDOM)
    _, second = (world.wait_for_launch(trial) for trial in world.client.trials(experiment_id))
    world.client.post("/api/v1/trials/1/kill")
    eventually(lambda: world.client.trial(1)["state"] == "STATE_CANCELED")
    third = eventually(lambda: (found := world.client.trials(experiment_id)) and len(found) == 3 and found[2])
    for allocation in (second, world.wait_for_launch(third)):
        world.pool.finish(allocation)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    world.client.post("/api/v1/trials/1/kill", status=404)


def test_fault_of_the_search_ends_the_experiment_and_not_the_master(world, monkeypatch):
    experiment_id, trial, _ = world.launch()
    monkeypatch.setattr("det_keras.search.base.SearchMethod.validation_completed", lambda *_: 1 / 0)
    world.client.report(trial["id"], "validation", 1, {"loss": 1.0})
    world.client.wait_for_state(experiment_id, "ERROR")


def test_lengths_are_given_and_completed(world):
    config = SINGLE.replace("metric: loss", "metric: loss, max_length: {batches: 100}")
    experiment_id, trial, first = world.launch(config)
    path = f"/api/v1/trials/{trial['id']}/searcher"
    answer = world.client.get(f"{path}/operation")
    assert answer["op"]["validateAfter"]["length"] == "100"
    assert answer["completed"] is False
    world.client.post(f"/api/v1/trials/{trial['id']}/progress", {"progress": 50})
    assert world.client.experiment(experiment_id)["progress"] == 0.5
    done = {"op": {"length": 100}, "searcherMetric": 0.25}
    world.client.post(f"{path}/completed_operation", {**done, "op": {"length": 99}}, status=200)
    world.client.post(f"{path}/completed_operation", {**done, "op": {"length": 101}}, status=400)
    for _ in range(2):
        world.client.post(f"{path}/completed_operation", done)
    assert world.client.get(f"{path}/operation")["completed"] is True
    world.client.post(f"/api/v1/allocations/{first}/signals/ack_preemption")
    world.pool.finish(first)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    world.client.get(f"{path}/operation", status=404)


def test_script_decides_its_length_where_the_search_gives_none(world):
    _, trial, _ = world.launch()
    world.client.get(f"/api/v1/trials/{trial['id']}/searcher/operation", status=404)


def test_progress_never_goes_back(world):
    experiment_id, trial, _ = world.launch()
    for value in (0.5, 0.25, float("nan")):
        body = {"progress": "NaN" if value != value else value, "is_raw": True}
        world.client.post(f"/api/v1/trials/{trial['id']}/progress", body)
        assert world.client.experiment(experiment_id)["progress"] == 0.5


def test_restarted_master_takes_up_what_runs(make_world):
    pool = FakePool()
    world = make_world(pool)
    experiment_id, trial, first = world.launch(
        RANDOM.replace("max_concurrent_trials: 2", "max_concurrent_trials: 1")
    )
    make_world.stop()
    pool.say(first, "while nobody looked\n")
    pool.finish(first)
    again = make_world(pool)
    second = eventually(
        lambda: (found := again.client.trials(experiment_id)) and len(found) == 2 and found[1]
    )
    again.wait_for_launch(second)
    assert [line["log"] for line in again.client.log(trial["id"])] == ["while nobody looked\n"]


def test_slots_are_shared_fairly_between_experiments(world):
    four = RANDOM.replace(
        "max_trials: 3, max_concurrent_trials: 2", "max_trials: 4, max_concurrent_trials: 0"
    )
    first = world.client.create(four)
    eventually(lambda: len(world.pool.launched) == 2)
    second = world.client.create()
    world.pool.finish(next(iter(world.pool.launched)))
    (trial,) = world.client.trials(second)
    world.wait_for_launch(trial)
    assert world.client.experiment(first)["numTrials"] == 4


def test_files_travel_to_the_task_and_back(world):
    files = [file_entry("pkg", type=53, mode=0o40755), file_entry("pkg/a.py", b"print(1)\n")]
    experiment_id, _, allocation_id = world.launch(modelDefinition=files)
    answer = world.client.get(f"/api/v1/experiments/{experiment_id}/model_def")["b64Tgz"]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(answer)), mode="r:gz") as archive:
        assert archive.getnames() == ["pkg", "pkg/a.py"]
        member = archive.extractfile("pkg/a.py")
        assert member is not None
        assert member.read() == b"print(1)\n"
        assert archive.getmember("pkg/a.py").mode == 0o644
    task_id = allocation_id.rpartition(".")[0]
    assert world.client.get(f"/api/v1/tasks/{task_id}/context_directory")["b64Tgz"] == answer
    fork = world.client.create(parentId=experiment_id, activate=False)
    assert world.client.get(f"/api/v1/experiments/{fork}/model_def")["b64Tgz"] == answer
    assert world.client.experiment(fork)["forkedFrom"] == experiment_id


def test_files_that_leave_the_directory_are_refused_and_nothing_is_stored(world):
    body = {"config": SINGLE, "modelDefinition": [file_entry("ok.py"), file_entry("../evil.py")]}
    world.client.post("/api/v1/experiments", body, status=400)
    assert world.client.get("/api/v1/experiments")["experiments"] == []
    assert not (world.home.root / "contexts").exists()


def test_change_shows_everywhere_and_leaves_the_rest(client):
    experiment_id = client.create(activate=False)
    path = f"/api/v1/experiments/{experiment_id}"
    before = client.experiment(experiment_id)
    changes = {
        "name": "new",
        "labels": ["b", "a", "b"],
        "notes": "long " * 100,
        "resources": {"maxSlots": 2, "priority": 7},
    }
    after = client.call("PATCH", path, changes)["experiment"]
    assert (after["name"], after["labels"], after["notes"]) == ("new", ["a", "b"], "long " * 100)
    assert after["config"]["labels"] == ["a", "b"]
    assert after["config"]["name"] == "new"
    assert after["config"]["resources"]["priority"] == 7
    assert after["description"] == before["description"]
    client.call("PATCH", path, {"name": " "}, status=400)
    assert client.call("PUT", f"{path}/labels/c")["labels"] == ["a", "b", "c"]
    assert client.call("DELETE", f"{path}/labels/a")["labels"] == ["b", "c"]
    assert client.call("PUT", f"{path}/labels/c%2Fd")["labels"] == ["b", "c", "c/d"]
    client.call("PUT", f"{path}/labels/%20", status=400)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [" "]}, "must not be blank"),
        ({"resources": {"weight": "NaN"}}, "a number above 0"),
        ({"resources": {"weight": "Infinity"}}, "a number above 0"),
        ({"description": "x" * (128 << 10)}, "may have 128 KiB"),
    ],
)
def test_change_that_cannot_be_is_refused(client, changes, message):
    experiment_id = client.create(activate=False)
    error = client.call("PATCH", f"/api/v1/experiments/{experiment_id}", changes, status=400)["error"]
    assert message in error["error"]


def test_list_shows_every_change_at_once(world):
    client = world.client
    experiment_id, trial, allocation_id = world.launch()
    path = f"/api/v1/experiments/{experiment_id}"

    def move(verb: str) -> None:
        client.post(f"{path}/{verb}")

    def finish() -> None:
        world.pool.finish(allocation_id)
        client.wait_for_state(experiment_id, "COMPLETED")

    user = client.get("/api/v1/me")["user"]["id"]
    changes = [
        lambda: None,
        lambda: client.call("PATCH", path, {"name": "new", "description": "d", "notes": "n"}),
        lambda: client.call("PUT", f"{path}/labels/a"),
        lambda: client.call("PATCH", f"/api/v1/users/{user}", {"displayName": "Shown"}),
        lambda: client.report(trial["id"], "validation", 1, {"loss": 0.5}),
        lambda: client.report(trial["id"], "validation", 2, {"loss": 0.25}),
        finish,
        lambda: move("archive"),
    ]
    shown = []
    for change in changes:
        change()
        (listed,) = client.get("/api/v1/experiments")["experiments"]
        detail = {**client.get(path)["experiment"], "trialIds": []}
        detail.pop("waitReason")
        # A second may pass in between.
        assert detail.pop("duration") - listed.pop("duration") in (0, 1)
        assert listed == detail
        shown.append(json.dumps(listed))
    assert len(set(shown)) == len(changes)


def test_labels_that_come_at_once_all_stay(client):
    experiment_id = client.create(activate=False)
    names = [f"label-{number}" for number in range(40)]

    def add(name):
        client.call("PUT", f"/api/v1/experiments/{experiment_id}/labels/{name}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, names))
    assert client.experiment(experiment_id)["labels"] == sorted(names)


def test_config_that_no_task_could_be_given_is_refused(client):
    body = {"config": SINGLE + f"data: {{x: {'y' * (128 << 10)}}}\n", "activate": False}
    error = client.post("/api/v1/experiments", body, status=400)["error"]
    assert "may have 128 KiB" in error["error"]
    assert "into a file" in error["error"]
    config = {"entrypoint": ["true"], "data": {"x": "y" * (128 << 10)}}
    error = client.post("/api/v1/commands", {"config": config}, status=400)["error"]
    assert "may have 128 KiB" in error["error"]


def test_what_has_no_value_is_listed_last_in_either_direction(world):
    client = world.client
    for index in range(3):
        trial = client.trials(client.create(activate=False))[0]
        # The first has none. A trial's first run is number 0 until it is launched.
        if index:
            client.report(trial["id"], "validation", 10, {"loss": float(index)}, run_id=0)
    listed = {
        order: [
            one["id"]
            for one in client.get(
                "/api/v1/experiments",
                params={"sortBy": "SORT_BY_SEARCHER_METRIC_VAL", "orderBy": f"ORDER_BY_{order}"},
            )["experiments"]
        ]
        for order in ("ASC", "DESC")
    }
    assert listed == {"ASC": [2, 3, 1], "DESC": [3, 2, 1]}


def test_description_of_the_config_is_the_experiments(client):
    for text, expected in (("", ""), ("description: a try\n", "a try")):
        number = client.create(SINGLE + text, activate=False)
        assert client.experiment(number)["description"] == expected


def test_trials_are_sorted_by_their_latest_validation(client):
    number = client.create(
        RANDOM.replace("max_concurrent_trials: 2", "max_concurrent_trials: 3"), activate=False
    )
    first, second, third = (trial["id"] for trial in client.trials(number))
    for trial, values in ((first, (0.1, 0.9)), (second, (0.5, 0.4)), (third, (0.2, "NaN"))):
        for step, value in enumerate(values):
            client.report(trial, "validation", step + 1, {"loss": value}, run_id=0)
    for name, expected in (("LATEST", [second, first, third]), ("BEST", [first, third, second])):
        params = {"sortBy": f"SORT_BY_{name}_VALIDATION_METRIC"}
        listed = client.get(f"/api/v1/experiments/{number}/trials", params=params)["trials"]
        assert [trial["id"] for trial in listed] == expected


def test_trials_are_sorted_by_their_end_and_those_that_train_come_first(world):
    number = world.client.create(RANDOM)
    eventually(lambda: len(world.client.trials(number)) == 2)
    first, second = world.client.trials(number)
    world.wait_for_launch(second)
    world.pool.finish(world.wait_for_launch(first))
    eventually(lambda: world.client.trial(first["id"])["endTime"])
    params = {"sortBy": "SORT_BY_END_TIME"}
    listed = world.client.get(f"/api/v1/experiments/{number}/trials", params=params)["trials"]
    assert [trial["id"] for trial in listed if trial["endTime"]] == [first["id"]]
    assert listed[-1]["id"] == first["id"]


def test_queue_shows_the_pool_and_the_states_that_are_asked_for(world):
    client = world.client
    world.launch()
    client.create(SINGLE + "resources: {slots_per_trial: 2}\n")

    def listed(**params):
        return [one["full"]["entityId"] for one in client.get("/api/v1/job-queues-v2", params=params)["jobs"]]

    eventually(lambda: listed(states="STATE_SCHEDULED") == ["1"])
    (pool,) = client.get("/api/v1/resource-pools")["resourcePools"]
    assert pool["stats"] == {"queuedCount": 1, "scheduledCount": 1}
    assert listed(states="STATE_QUEUED", resourcePool="default") == ["2"]
    assert listed(states=["STATE_QUEUED", "STATE_SCHEDULED"]) == ["1", "2"]
    assert listed(resourcePool="other") == []
    client.get("/api/v1/job-queues-v2", params={"states": "STATE_LOST"}, status=400)


def test_limit_below_none_is_refused(client):
    client.create(activate=False)
    assert "`limit`" in client.get("/api/v1/experiments?limit=-5", status=400)["error"]["error"]
    assert client.get("/api/v1/experiments?limit=-2")["experiments"] == []


def test_list_filters_sorts_and_pages(world):
    client = world.client
    for name in ("beta", "alpha", "gamma"):
        client.create(SINGLE + f"name: {name}\nlabels: [{name[0]}]\n", activate=False)
    client.move(3, "cancel")
    client.move(3, "archive")

    def names(**params):
        return [one["name"] for one in client.get("/api/v1/experiments", params=params)["experiments"]]

    assert names() == ["beta", "alpha", "gamma"]
    assert names(archived="false") == ["beta", "alpha"]
    assert names(sortBy="SORT_BY_NAME", orderBy="ORDER_BY_DESC") == ["gamma", "beta", "alpha"]
    assert names(states=["STATE_CANCELED"]) == ["gamma"]
    assert names(labels="a") == ["alpha"]
    assert names(name="ET") == ["beta"]
    assert names(users="nobody") == []
    assert names(**{"experimentIdFilter.gt": 1, "experimentIdFilter.lte": 2}) == ["alpha"]
    assert names(**{"experiment_id_filter.not_in": [1, 2]}) == ["gamma"]
    page = client.get("/api/v1/experiments", params={"offset": 1, "limit": 1})
    assert [one["name"] for one in page["experiments"]] == ["alpha"]
    assert page["pagination"] == {"offset": 1, "limit": 1, "startIndex": 1, "endIndex": 2, "total": 3}
    assert client.get("/api/v1/experiments", params={"limit": -2})["experiments"] == []


def test_only_finished_experiments_are_archived_and_deleted(world):
    experiment_id, trial, first = world.launch()
    world.client.move(experiment_id, "archive", status=400)
    world.client.call("DELETE", f"/api/v1/experiments/{experiment_id}", status=400)
    world.pool.finish(first)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    world.client.move(experiment_id, "archive")
    world.client.move(experiment_id, "archive", status=400)
    world.client.move(experiment_id, "unarchive")
    world.client.call("DELETE", f"/api/v1/experiments/{experiment_id}")
    path = f"/api/v1/experiments/{experiment_id}"
    headers = {"Authorization": f"Bearer {world.client.token}"}
    eventually(lambda: world.http.get(path, headers=headers).status_code == 404)
    world.client.get(f"/api/v1/trials/{trial['id']}", status=404)
    assert world.pool.removed == [first]


def test_number_of_a_deleted_experiment_is_not_used_again(world):
    experiment_id = world.client.create(activate=False)
    world.client.move(experiment_id, "cancel")
    world.client.call("DELETE", f"/api/v1/experiments/{experiment_id}")
    eventually(lambda: world.client.get("/api/v1/experiments")["experiments"] == [])
    assert world.client.create(activate=False) == experiment_id + 1


def test_files_are_kept_as_long_as_somebody_refers_to_them(world):
    files = [file_entry("a.py", b"1")]
    first, second = (world.client.create(modelDefinition=files, activate=False) for _ in range(2))
    for number, left in ((first, 1), (second, 0)):
        world.client.move(number, "cancel")
        world.client.call("DELETE", f"/api/v1/experiments/{number}")
        eventually(lambda: len(world.client.get("/api/v1/experiments")["experiments"]) == left)  # noqa: B023
        eventually(lambda: len(list((world.home.root / "contexts").iterdir())) == left)  # noqa: B023


@pytest.mark.parametrize("verb", ["activate", "pause", "cancel", "kill", "archive", "unarchive"])
def test_orders_to_an_unknown_experiment_are_404(client, verb):
    assert client.move(7, verb, status=404)["error"]["error"] == "experiment '7' not found"


@pytest.mark.parametrize(("days", "kept"), [(0, []), (-1, ["last words\n"]), (30, ["last words\n"])])
def test_logs_are_kept_as_long_as_the_experiment_asks(world, days, kept):
    config = f"{SINGLE}retention_policy: {{log_retention_days: {days}}}\n"
    experiment_id, trial, allocation = world.launch(config)
    world.pool.say(allocation, "last words\n")
    eventually(lambda: world.client.log(trial["id"]))
    world.pool.finish(allocation)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    if not kept:
        eventually(lambda: not world.client.log(trial["id"]))
    assert [line["log"] for line in world.client.log(trial["id"])] == kept


def test_new_trial_has_trained_nothing(world):
    _, trial, _ = world.launch()
    assert world.client.trial(trial["id"])["totalBatchesProcessed"] == 0


def test_list_without_a_limit_has_more_than_one_row(client):
    numbers = [client.create() for _ in range(3)]
    shown = client.get("/api/v1/experiments")["experiments"]
    assert sorted(experiment["id"] for experiment in shown) == numbers


def test_storage_whose_package_is_missing_is_refused_at_creation(client, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = SINGLE + "checkpoint_storage: {type: s3, bucket: b}\n"
    message = client.post("/api/v1/experiments", {"config": config}, status=400)["error"]["error"]
    assert "pip install 'det_keras[s3]'" in message


@pytest.mark.parametrize(
    ("place", "reason"), [("link", "is a link to"), ("file/deep", "file is not a directory")]
)
def test_storage_that_cannot_be_made_is_refused_at_creation(client, tmp_path, place, reason):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    config = SINGLE + "checkpoint_storage: {type: shared_fs, host_path: PATH}\n"
    body = {"config": config.replace("PATH", str(tmp_path / place))}
    message = client.post("/api/v1/experiments", body, status=400)["error"]["error"]
    assert reason in message
    client.create(config.replace("PATH", str(tmp_path / "new" / "deep")))


def test_trials_on_several_machines_need_a_storage_that_all_of_them_reach(make_world, tmp_path):
    pool = FakePool(2, 2)
    client = make_world(pool).client
    pool.is_spread = True
    refused = client.post("/api/v1/experiments", {"config": SINGLE}, status=400)
    assert "`checkpoint_storage` must be set" in json.dumps(refused)
    client.create(SINGLE + f"checkpoint_storage: {{type: directory, container_path: {tmp_path}}}\n")
    pool.is_spread = False
    client.create(SINGLE)
