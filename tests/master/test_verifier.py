"""Copies of trials: when the master starts one, when it gives way, and what it says of the result."""

from __future__ import annotations

import json

import pytest

from master.fakes import SINGLE, FakePool, eventually, file_entry
from master.test_checkpoints import store, uuid

FILES = [file_entry("train.py", b"print()")]


@pytest.fixture
def make(make_world):
    """Return a function that starts a master which verifies each experiment's files once."""
    return lambda *slots, verify_resume="once", **options: make_world(
        FakePool(*slots), verify_resume=verify_resume, **options
    )


def begin(world, config=SINGLE, *, files=FILES, first=1):
    """Start an experiment whose first trial has two checkpoints; return its number and the trial."""
    number, trial, allocation = world.launch(config, modelDefinition=files)
    for index, steps in enumerate((120, 180)):
        report(world, trial, first + index, steps)
    return number, trial, allocation


def report(world, trial, number, steps, *, run=1, phase=0, **metadata):
    metadata = {"steps_completed": steps, "format": "keras", "phase": phase, **metadata}
    store(world, trial, number, steps, metadata=metadata, allocationId=f"{trial['taskId']}.{run}")


def found(world, number):
    return world.client.get(f"/api/v1/experiments/{number}/verification")["verification"]


def state(world, number):
    return (found(world, number) or {}).get("state")


def copy_of(world, number, attempt=1):
    """Return the launch of a copy, once there is one."""
    name = f"verification-{number}.{attempt}"
    return eventually(lambda: world.pool.launched.get(name))


def end(world, number, result=None, *, attempt=1, code=0):
    """End a copy with a result."""
    name = copy_of(world, number, attempt).allocation_id
    if result is not None:
        folder = world.home.logs / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "verification.json").write_text(json.dumps(result))
    world.pool.finish(name, code)


def log(world, trial):
    return [
        (line["level"].removeprefix("LOG_LEVEL_"), line["message"]) for line in world.client.log(trial["id"])
    ]


def test_copy_resumes_from_the_first_checkpoint_and_reports_that_it_is_exact(make):
    world = make(2)
    number, trial, allocation = begin(world)
    launch = copy_of(world, number)
    told = json.loads(launch.variables["DET_KERAS_COPY"])
    assert (told["checkpoints"], told["expected"]) == ([uuid(1)], uuid(2))
    assert launch.variables["DET_LATEST_CHECKPOINT"] == uuid(1)
    assert launch.variables["DET_TRIAL_SEED"] == world.pool.launched[allocation].variables["DET_TRIAL_SEED"]
    assert launch.shares != world.pool.launched[allocation].shares
    assert state(world, number) == "RUNNING"

    end(world, number, {"differences": []})
    eventually(lambda: state(world, number) == "EXACT")
    assert found(world, number)["text"] == "resumes exactly (verified at batches 120 to 180)"
    assert any("resumes exactly" in line for _, line in log(world, trial))
    assert (
        "resumes exactly (verified"
        in world.http.get(
            f"/experiments/{number}", headers={"Authorization": f"Bearer {world.client.token}"}
        ).text
    )
    # Its trial never knew of it.
    assert world.client.trial(trial["id"])["restarts"] == 0


def test_differences_are_a_warning_in_the_log(make):
    world = make(2)
    number, trial, _ = begin(world)
    end(world, number, {"differences": ["the optimizer variable `adam/learning_rate`"]})
    eventually(lambda: state(world, number) == "DIFFERENT")
    (warning,) = [line for level, line in log(world, trial) if level == "WARNING"]
    assert "NOT resume exactly" in warning
    assert "differs at batch 180 in the optimizer variable `adam/learning_rate`" in warning
    page = world.http.get(f"/experiments/{number}", headers={"Authorization": f"Bearer {world.client.token}"})
    assert f"Trial {trial['id']} does not resume exactly" in page.text
    assert "adam/learning_rate" in page.text


@pytest.mark.parametrize(
    ("result", "code", "reason"),
    [
        (None, 1, "the copy ended with exit code 1 before the second checkpoint"),
        ({"failure": "a checkpoint cannot be read: gone"}, 0, "a checkpoint cannot be read: gone"),
    ],
)
def test_copy_that_fails_is_no_harm(result, code, reason, make):
    world = make(2)
    number, _, allocation = begin(world)
    end(world, number, result, code=code)
    eventually(lambda: state(world, number) == "UNVERIFIED")
    assert found(world, number)["text"] == f"could not be verified: {reason}"
    world.pool.finish(allocation)
    world.client.wait_for_state(number, "COMPLETED")


def test_same_files_are_verified_once(make):
    world = make(8)
    number, _, _ = begin(world)
    end(world, number, {"differences": []})
    eventually(lambda: state(world, number) == "EXACT")
    same, _, _ = begin(world, first=3)
    other, _, _ = begin(world, first=5, files=[file_entry("train.py", b"print(1)")])
    copy_of(world, other)
    assert found(world, same) is None
    always, _, _ = begin(world, SINGLE + "reproducibility: {verify_resume: always}\n", first=7)
    copy_of(world, always)


def test_files_that_could_not_be_verified_are_tried_with_the_next_experiment(make):
    world = make(8)
    number, _, _ = begin(world)
    end(world, number, code=1)
    eventually(lambda: state(world, number) == "UNVERIFIED")
    again, _, _ = begin(world, first=3)
    copy_of(world, again)


def test_config_is_stronger_than_the_default_of_the_master(make, make_world):
    world = make(8)
    number, _, _ = begin(world, SINGLE + "reproducibility: {verify_resume: never}\n")
    assert found(world, number) is None
    make_world.stop()
    world = make(8, verify_resume="never")
    number, _, _ = begin(world, first=3)
    assert found(world, number) is None
    number, _, _ = begin(world, SINGLE + "reproducibility: {verify_resume: once}\n", first=5)
    assert found(world, number) is not None


def test_only_the_first_two_checkpoints_of_one_process_are_compared(make):
    world = make(2)
    number, trial, _ = world.launch(SINGLE, modelDefinition=FILES)
    report(world, trial, 1, 60)
    report(world, trial, 2, 120, run=2)
    assert found(world, number) is None
    # The end of an earlier training belongs to what the copy needs.
    report(world, trial, 3, 180, run=2, phase=1)
    assert (found(world, number)["firstBatch"], found(world, number)["secondBatch"]) == (120, 180)
    report(world, trial, 4, 240, run=2)
    assert found(world, number)["secondBatch"] == 180


def test_checkpoints_of_another_format_are_not_compared(make):
    world = make(2)
    number, trial, _ = world.launch(SINGLE, modelDefinition=FILES)
    for index, steps in enumerate((120, 180), start=1):
        report(world, trial, index, steps, format="own")
    assert found(world, number) is None


def test_task_gets_the_slot_of_a_copy_at_once_and_the_copy_is_tried_again(make):
    world = make(2)
    number, _, _ = begin(world)
    first = copy_of(world, number)
    # The launch does not wait for the copy, whose process may take its time to die.
    world.pool.is_stubborn = True
    _, _, allocation = world.launch(SINGLE)
    assert world.pool.launched[allocation].shares == first.shares
    eventually(lambda: (first.allocation_id, False) in world.pool.kills)
    world.pool.finish(first.allocation_id, 137)
    eventually(lambda: state(world, number) == "WAITING")
    assert f"verification-{number}.2" not in world.pool.launched

    world.pool.finish(allocation)
    copy_of(world, number, 2)
    end(world, number, {"differences": []}, attempt=2)
    eventually(lambda: state(world, number) == "EXACT")


def test_copy_that_always_has_to_give_way_is_given_up(make):
    world = make(2)
    number, _, _ = begin(world)
    for attempt in (1, 2, 3):
        end(world, number, attempt=attempt, code=137)
    eventually(lambda: state(world, number) == "UNVERIFIED")
    assert "stopped 3 times" in found(world, number)["text"]


def test_copy_waits_for_a_slot_until_the_experiment_has_ended(make):
    world = make(1)
    number, _, allocation = begin(world)
    assert state(world, number) == "WAITING"
    world.pool.finish(allocation)
    world.client.wait_for_state(number, "COMPLETED")
    # Its slot is free now.
    end(world, number, {"differences": []})
    eventually(lambda: state(world, number) == "EXACT")


def test_without_a_free_slot_nothing_is_verified(make):
    world = make(1)
    number, _, allocation = begin(world)
    other = world.client.create(SINGLE)
    world.pool.finish(allocation)
    world.wait_for_launch(world.client.trials(other)[0])
    eventually(lambda: state(world, number) == "UNVERIFIED")
    assert found(world, number)["text"] in (
        "not verified: no free slot",
        # It got the slot for a moment, between the two trials.
        "could not be verified: the copy was stopped 3 times, mostly because a task needed its slot",
    )


def test_checkpoints_are_kept_until_they_were_compared(make):
    world = make(2)
    number, _, allocation = begin(world)
    copy_of(world, number)
    world.pool.finish(allocation)
    world.client.wait_for_state(number, "COMPLETED")
    world.master.garbage_collector.tidy()
    assert (world.home.checkpoints / uuid(1)).exists()
    end(world, number, {"differences": []})
    eventually(lambda: not (world.home.checkpoints / uuid(1)).exists())


def test_restarted_master_starts_the_copy_again(make, make_world):
    world = make(2)
    number, _, _ = begin(world)
    copy_of(world, number)
    pool = world.pool
    make_world.stop()
    assert (f"verification-{number}.1", True) in pool.kills
    world = make_world(pool, verify_resume="once")
    end(world, number, {"differences": []}, attempt=2)
    eventually(lambda: state(world, number) == "EXACT")


def test_deleted_experiment_takes_its_copy_with_it(make):
    world = make(2)
    number, _, allocation = begin(world)
    name = copy_of(world, number).allocation_id
    world.pool.finish(allocation)
    world.client.wait_for_state(number, "COMPLETED")
    world.client.call("DELETE", f"/api/v1/experiments/{number}")
    eventually(lambda: name in world.pool.removed)
    assert (name, True) in world.pool.kills


def test_machines_of_a_cluster_run_no_copies(make_world):
    pool = FakePool(2)
    pool.is_spread = True
    world = make_world(pool, verify_resume="once")
    storage = "checkpoint_storage: {type: directory, container_path: /tmp/x}\n"
    number, trial, _ = world.launch(SINGLE + storage, modelDefinition=FILES)
    for index, steps in enumerate((120, 180), start=1):
        report(world, trial, index, steps)
    assert found(world, number) is None
