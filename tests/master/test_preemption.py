"""Preempted trials: asked to stop, resumed on slots of their own, without a restart."""

from __future__ import annotations

import pytest

from det_keras.master.tasks.scheduling import FairSharePolicy, PriorityPolicy
from master.fakes import SINGLE, FakePool, eventually

LOW = SINGLE + "resources: {priority: 50}\n"
HIGH = SINGLE + "resources: {priority: 10}\n"
RANDOM = (
    "entrypoint: a\nhyperparameters: {x: {type: double, minval: 0, maxval: 1}}\n"
    "searcher: {name: random, metric: loss, max_trials: 9, max_concurrent_trials: 9}\n"
)


@pytest.fixture
def world(make_world):
    return make_world(FakePool(1), policy=PriorityPolicy(preemption=True))


def is_asked(world, allocation_id: str) -> bool:
    path = f"/api/v1/allocations/{allocation_id}/signals/preemption?timeout_seconds=0"
    return world.client.get(path)["preempt"]


def acknowledge(world, allocation_id: str) -> None:
    world.client.post(f"/api/v1/allocations/{allocation_id}/signals/ack_preemption")
    world.pool.finish(allocation_id)


def lines(world, trial) -> str:
    return "\n".join(line["log"] for line in world.client.log(trial["id"]))


def test_preempted_trial_stops_resumes_and_counts_no_restart(world, caplog):
    caplog.set_level("INFO")
    _, low, first = world.launch(LOW)
    assert not is_asked(world, first)
    number = world.client.create(HIGH)
    eventually(lambda: is_asked(world, first))
    (high,) = world.client.trials(number)
    assert f"preempted by experiment {number}, which has priority 10" in lines(world, low)
    assert f"Trial {low['id']} is preempted by experiment {number}" in caplog.text
    # It takes its time; nothing starts on its slot meanwhile.
    assert list(world.pool.launched) == [first]
    acknowledge(world, first)
    running = world.wait_for_launch(high)
    assert world.client.trial(low["id"])["state"] == "STATE_QUEUED"
    world.pool.finish(running)
    second = world.wait_for_launch(low, 2)
    assert world.client.trial(low["id"])["restarts"] == 0
    world.pool.finish(second)
    world.client.wait_for_state(low["experimentId"], "COMPLETED")


def test_without_preemption_a_smaller_number_waits(make_world):
    world = make_world(FakePool(1))
    _, _, first = world.launch(LOW)
    number = world.client.create(HIGH)
    (high,) = world.client.trials(number)
    world.pool.finish(first)
    world.wait_for_launch(high)
    assert not is_asked(world, first)


def test_generic_job_is_not_preempted(world):
    answer = world.client.post(
        "/api/v1/commands", {"config": {"entrypoint": ["a"], "resources": {"priority": 99}}}
    )
    first = f"{answer['command']['id']}.1"
    eventually(lambda: first in world.pool.launched)
    world.client.create(HIGH)
    eventually(lambda: world.pool.demands == [1])
    assert not is_asked(world, first)


def test_changed_priority_takes_effect_at_once(world):
    _, _, first = world.launch(SINGLE)
    number = world.client.create(SINGLE)
    eventually(lambda: world.pool.demands == [1])
    assert not is_asked(world, first)
    world.client.call("PATCH", f"/api/v1/experiments/{number}", {"resources": {"priority": 3}})
    eventually(lambda: is_asked(world, first))


@pytest.mark.parametrize(
    ("verb", "state"), [("pause", "PAUSED"), ("cancel", "CANCELED"), ("kill", "CANCELED")]
)
def test_user_who_stops_a_trial_that_is_being_preempted_has_it_stopped(world, verb, state):
    experiment_id, low, first = world.launch(LOW)
    number = world.client.create(HIGH)
    eventually(lambda: is_asked(world, first))
    world.client.move(experiment_id, verb)
    if verb != "kill":
        acknowledge(world, first)
    (high,) = world.client.trials(number)
    running = world.wait_for_launch(high)
    world.client.wait_for_state(experiment_id, state)
    world.pool.finish(running)
    world.client.wait_for_state(number, "COMPLETED")
    if verb == "pause":
        assert f"{low['taskId']}.2" not in list(world.pool.launched)
        world.client.move(experiment_id, "activate")
        world.wait_for_launch(low, 2)
        assert world.client.trial(low["id"])["restarts"] == 0


def test_preempted_trial_that_ends_by_itself_has_ended(world):
    experiment_id, _, first = world.launch(LOW)
    number = world.client.create(HIGH)
    eventually(lambda: is_asked(world, first))
    world.pool.finish(first)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    world.wait_for_launch(world.client.trials(number)[0])


def test_preempted_trial_that_fails_counts_a_restart(world):
    _, low, first = world.launch(LOW)
    number = world.client.create(HIGH)
    eventually(lambda: is_asked(world, first))
    world.pool.finish(first, 1)
    world.wait_for_launch(world.client.trials(number)[0])
    assert world.client.trial(low["id"])["restarts"] == 1


def test_preemptor_that_is_killed_leaves_the_slot_to_the_preempted(world):
    _, low, first = world.launch(LOW)
    number = world.client.create(HIGH)
    eventually(lambda: is_asked(world, first))
    world.client.move(number, "kill")
    world.client.wait_for_state(number, "CANCELED")
    acknowledge(world, first)
    world.wait_for_launch(low, 2)


def test_master_that_restarts_meanwhile_preempts_no_other_trial(make_world):
    policy = PriorityPolicy(preemption=True)
    world = make_world(FakePool(1, 1), policy=policy)
    _, _, first = world.launch(LOW)
    _, _, second = world.launch(LOW)
    number = world.client.create(HIGH)
    eventually(lambda: is_asked(world, first) or is_asked(world, second))
    make_world.stop()
    world = make_world(world.pool, policy=policy)
    asked = [name for name in (first, second) if is_asked(world, name)]
    assert len(asked) == 1
    (high,) = world.client.trials(number)
    acknowledge(world, asked[0])
    world.wait_for_launch(high)
    assert sum(is_asked(world, name) for name in {first, second} - set(asked)) == 0


def test_fair_share_moves_slots_when_a_search_comes_and_when_weights_change(make_world):
    world = make_world(FakePool(4), policy=FairSharePolicy())

    def running(number):
        """Return the running attempts of an experiment, after all that were asked have stopped."""
        for name in [
            name
            for name in list(world.pool.launched)
            if name not in world.pool.exits and is_asked(world, name)
        ]:
            acknowledge(world, name)
        tasks = {trial["taskId"] for trial in world.client.trials(number)}
        return sum(
            name.rsplit(".", 1)[0] in tasks
            for name in list(world.pool.launched)
            if name not in world.pool.exits
        )

    first = world.client.create(RANDOM)
    eventually(lambda: running(first) == 4)
    second = world.client.create(RANDOM)
    eventually(lambda: (running(first), running(second)) == (2, 2))
    world.client.call("PATCH", f"/api/v1/experiments/{second}", {"resources": {"weight": 3}})
    eventually(lambda: (running(first), running(second)) == (1, 3))
    world.client.move(second, "pause")
    eventually(lambda: (running(first), running(second)) == (4, 0))
    assert {trial["restarts"] for trial in world.client.trials(first)} == {0}
