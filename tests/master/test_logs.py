"""Logs: what they can be filtered by, how long they are kept, and what their lines lead to."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from det_keras.master.database.models import ExperimentRow
from det_keras.master.resources import Node, Slot
from det_keras.master.tasks.scheduling import Cluster, JobFacts, PriorityPolicy, Queue, Waiting
from det_keras.protocol.values import now
from master.fakes import SINGLE, FakePool, eventually
from master.test_doors import login

EXCLUDE = "log_policies: [{name: broken, pattern: 'ECC', action: exclude_node}]\n"
CANCEL = "log_policies: [{name: luck, pattern: 'out of luck', action: cancel_retries}]\n"
JOB = {"config": {"entrypoint": ["sleep"], "resources": {"slots": 1}}}


def results(world, path, **params):
    answer = world.http.get(path, params=params, headers={"Authorization": f"Bearer {world.client.token}"})
    assert answer.status_code == 200, answer.text
    return [json.loads(line)["result"] for line in answer.text.splitlines()]


def texts(world, trial, **params):
    return [line["log"] for line in results(world, f"/api/v1/trials/{trial['id']}/logs", **params)]


def notes(world, trial) -> str:
    return "".join(texts(world, trial, sources="master"))


# --- Filters.


def test_values_of_lines_are_what_they_can_be_filtered_by(world):
    _, trial, allocation = world.launch()
    for rank in (0, 1, None):
        world.pool.say(allocation, f"of {rank}\n", rank=rank)
    eventually(lambda: len(texts(world, trial)) == 3)
    (fields,) = results(world, f"/api/v1/trials/{trial['id']}/logs/fields")
    assert fields == {
        "agentIds": ["machine-0"],
        "containerIds": fields["containerIds"],
        "rankIds": [-1, 0, 1],
        "sources": ["task"],
        "stdtypes": ["stdout"],
    }
    for name, values in fields.items():
        assert texts(world, trial, **{name: values[0]}), name
    assert texts(world, trial, rankIds=-1) == ["of None\n"]
    assert texts(world, trial, rankIds=[-1, 1]) == ["of 1\n", "of None\n"]
    assert texts(world, trial, rankIds=-2) == []
    (of_task,) = results(world, f"/api/v1/tasks/{trial['taskId']}/logs/fields")
    assert of_task == {**fields, "allocationIds": [allocation]}


def test_followed_values_are_sent_again_when_there_are_others_and_end_with_the_task(world):
    _, trial, allocation = world.launch()
    world.pool.say(allocation, "first\n", rank=0)
    eventually(lambda: texts(world, trial))
    path = f"/api/v1/trials/{trial['id']}/logs/fields?follow=true"
    headers = {"Authorization": f"Bearer {world.client.token}"}
    world.pool.say(allocation, "second\n", rank=1)
    world.pool.finish(allocation)
    with world.http.stream("GET", path, headers=headers) as answer:
        found = [json.loads(line)["result"]["rankIds"] for line in answer.iter_lines()]
    assert found[-1][-1] == 1
    assert found == [list(ranks) for ranks in dict.fromkeys(map(tuple, found))]


def test_log_without_lines_has_no_values(world):
    _, trial, _ = world.launch()
    (fields,) = results(world, f"/api/v1/trials/{trial['id']}/logs/fields")
    assert set(map(tuple, fields.values())) == {()}
    for path in ("/api/v1/trials/99/logs/fields", "/api/v1/tasks/nope/logs/fields"):
        world.client.get(path, status=404)


# --- How long they are kept.


def ended(world, config=SINGLE, text="last words\n"):
    experiment_id, trial, allocation = world.launch(config)
    world.pool.say(allocation, text)
    eventually(lambda: texts(world, trial))
    world.pool.finish(allocation)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    return experiment_id, trial


def age(world, experiment_id, days):
    """Let an experiment have ended some days ago."""
    with world.master.store.writing() as tx:
        tx.get(ExperimentRow, experiment_id).end_time = now() - timedelta(days=days)


def remaining(world, trial):
    return world.client.get(f"/api/v1/trials/{trial['id']}/remaining_log_retention_days")["remainingDays"]


def retain(world, path, days, **options):
    return world.client.call("PUT", f"/api/v1/{path}/retain_logs", {"numDays": days}, **options)


def test_days_of_an_experiment_are_changed_and_of_a_trial_come_first(world):
    experiment_id, trial = ended(world)
    assert remaining(world, trial) == -1
    retain(world, f"experiments/{experiment_id}", 30)
    assert world.client.experiment(experiment_id)["config"]["retention_policy"] == {"log_retention_days": 30}
    assert remaining(world, trial) == 30
    age(world, experiment_id, 10.5)
    assert remaining(world, trial) == 20
    retain(world, f"trials/{trial['id']}", -1)
    assert (remaining(world, trial), world.client.trial(trial["id"])["logRetentionDays"]) == (-1, -1)
    age(world, experiment_id, 40)
    world.master.garbage_collector.tidy()
    assert texts(world, trial) == ["last words\n"]
    # What is said of the experiment later holds for all trials.
    retain(world, f"experiments/{experiment_id}", 35)
    assert remaining(world, trial) == 0
    world.master.garbage_collector.tidy()
    assert texts(world, trial) == []


def test_log_of_one_trial_is_deleted_before_the_others(world):
    (first, one), (second, other) = ended(world), ended(world)
    retain(world, f"trials/{one['id']}", 0)
    eventually(lambda: texts(world, one) == [])
    assert texts(world, other) == ["last words\n"]
    answer = world.client.call(
        "PUT",
        "/api/v1/projects/1/experiments/retain_logs",
        {"experimentIds": [first, second, 99], "numDays": 0, "projectId": 1},
    )
    assert [result["error"] == "" for result in answer["results"]] == [True, True, False]
    eventually(lambda: texts(world, other) == [])


@pytest.mark.parametrize("days", [-2, 32_768])
def test_days_out_of_range_are_refused(world, days):
    experiment_id, trial = ended(world)
    for path in (f"experiments/{experiment_id}", f"trials/{trial['id']}"):
        assert "numDays" in retain(world, path, days, status=400)["error"]["error"]
    retain(world, "experiments/99", 1, status=404)
    retain(world, "trials/99", 1, status=404)


def test_master_says_how_long_logs_are_kept_whose_configs_do_not(make_world):
    world = make_world(log_retention_days=5)
    experiment_id, trial = ended(world)
    kept_id, kept = ended(world, SINGLE + "retention_policy: {log_retention_days: -1}\n")
    job = world.client.post("/api/v1/commands", JOB)["command"]["id"]
    eventually(lambda: f"{job}.1" in world.pool.launched)
    world.pool.say(f"{job}.1", "of a job\n")
    eventually(lambda: results(world, f"/api/v1/tasks/{job}/logs"))
    assert (remaining(world, trial), remaining(world, kept)) == (5, -1)
    for number in (experiment_id, kept_id):
        age(world, number, 6)
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    world.client.post("/api/v1/cleanup_logs", status=403)
    assert admin.post("/api/v1/cleanup_logs")["removedCount"] == "1"
    assert (texts(world, trial), texts(world, kept)) == ([], ["last words\n"])
    # A job that runs keeps its log.
    assert results(world, f"/api/v1/tasks/{job}/logs")
    config = world.client.get("/api/v1/master/config")["config"]
    assert config["retention_policy"] == {"log_retention_days": 5}


# --- What lines lead to.


def test_trial_says_that_a_policy_makes_a_failure_final(world):
    experiment_id, trial, first = world.launch(SINGLE + CANCEL)
    world.pool.say(first, "out of luck\n")
    eventually(
        lambda: (
            f"Log policy 'luck' matched: a failure of trial {trial['id']} is final." in notes(world, trial)
        )
    )
    world.pool.say(first, "out of luck again\n")
    world.pool.finish(first, 1)
    world.client.wait_for_state(experiment_id, "ERROR")
    said = notes(world, trial)
    assert "trial failed and matched logs to a don't retry policy (luck)" in said
    assert said.count("Log policy") == 1


def test_trial_of_an_excluded_machine_is_run_again_on_another(make_world):
    world = make_world(FakePool(2, 2))
    _, trial, first = world.launch(SINGLE + EXCLUDE)
    (share,) = world.pool.launched[first].shares
    other = {"machine-0": "machine-1", "machine-1": "machine-0"}[share.node]
    world.pool.say(first, "an ECC error\n")
    eventually(lambda: f"therefore will not schedule on {share.node}" in notes(world, trial))
    assert world.client.trial(trial["id"])["logPolicyMatched"] == "broken"
    # The other machine is full, and the excluded one is free.
    jobs = [world.client.post("/api/v1/commands", JOB)["command"]["id"] for _ in range(3)]
    eventually(lambda: all(f"{job}.1" in world.pool.launched for job in jobs))
    on_other = [job for job in jobs if world.pool.launched[f"{job}.1"].shares[0].node == other]
    assert len(on_other) == 2
    world.pool.finish(first, 1)
    reason = f"waits for a slot on another machine than {share.node}, which a log policy excluded"
    eventually(lambda: world.client.trial(trial["id"])["waitReason"] == reason)
    # It holds back no other.
    later = world.client.post("/api/v1/commands", JOB)["command"]["id"]
    eventually(lambda: f"{later}.1" in world.pool.launched)
    world.pool.finish(f"{on_other[0]}.1")
    second = world.wait_for_launch(trial, 2)
    assert world.pool.launched[second].shares[0].node == other
    assert world.pool.launched[second].is_pinned
    assert world.client.trial(trial["id"])["restarts"] == 1


def test_trial_without_another_machine_ends(make_world):
    world = make_world(FakePool(2))
    experiment_id, trial, first = world.launch(SINGLE + EXCLUDE)
    world.pool.say(first, "an ECC error\n")
    eventually(lambda: world.client.trial(trial["id"])["logPolicyMatched"] == "broken")
    world.pool.finish(first, 1)
    world.client.wait_for_state(experiment_id, "ERROR")
    assert "its log policies exclude machine-0, and no other machine has its slots" in notes(world, trial)
    assert world.client.trial(trial["id"])["restarts"] == 1
    assert world.client.get("/api/v1/master/config")["config"]["launch_error"] is True


def test_exclusions_survive_a_restart_of_the_master(make_world):
    world = make_world(FakePool(1, 1))
    _, trial, first = world.launch(SINGLE + EXCLUDE)
    node = world.pool.launched[first].shares[0].node
    world.pool.say(first, "an ECC error\n")
    eventually(lambda: world.client.trial(trial["id"])["logPolicyMatched"] == "broken")
    make_world.stop()
    # The attempt is lost, and its trial is run again.
    again = make_world(FakePool(1, 1))
    second = again.wait_for_launch(trial, 2)
    assert again.pool.launched[second].shares[0].node != node


def test_trial_with_excluded_machines_comes_behind_the_others_of_its_search():
    machines = [Node(name, "127.0.0.1", [Slot(0, "cpu")]) for name in ("a", "b")]
    policy = PriorityPolicy()
    queue = Queue(policy.key, Cluster(machines, {"b": {0}}))
    queue.set_job("search", JobFacts(1))
    queue.wait("search", Waiting("picky", 1, excluded=frozenset({"a"})))
    queue.wait("search", Waiting("plain", 2))
    (grant,) = policy.plan(queue).grants
    assert (grant.task_id, grant.shares[0].node) == ("plain", "a")


def test_task_larger_than_a_node_avoids_excluded_nodes():
    machines = [Node(name, "127.0.0.1", [Slot(index, "cpu") for index in range(2)]) for name in "abc"]
    cluster = Cluster(machines)
    assert [(share.node, len(share.slot_ids)) for share in cluster.take(3, {"a"})] == [("b", 2), ("c", 1)]
    assert cluster.take(2, {"a"}) is None
    assert [share.node for share in cluster.take(1, {"a"})] == ["c"]
