"""Searches with more trials than one transaction moves: they follow their experiment in parts."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select, update

from det_keras.master import lifecycle
from det_keras.master.database.models import (
    AllocationRow,
    ExperimentRow,
    LogRow,
    MetricRow,
    TaskRow,
    TrialRow,
)
from det_keras.master.database.store import Store
from det_keras.master.experiments.trial_rows import MOST_MOVED
from det_keras.protocol import states
from det_keras.search.base import MOST_AT_ONCE

from .fakes import FakePool, eventually

WIDE = """\
entrypoint: python3 train.py
searcher: {{name: grid, metric: loss, max_concurrent_trials: 0}}
hyperparameters:
  number: {{type: int, minval: 0, maxval: {last}, count: {count}}}
"""


def wide(count: int) -> str:
    return WIDE.format(last=count - 1, count=count)


def count(store: Store, experiment_id: int, *found: str) -> int:
    """Return how many trials are in one of these states."""
    with store.reading() as session:
        query = select(func.count()).where(TrialRow.experiment_id == experiment_id, TrialRow.state.in_(found))
        return session.scalar(query) or 0


def state(world, experiment_id: int) -> str:
    return world.client.experiment(experiment_id)["state"].removeprefix("STATE_")


@pytest.fixture
def one_at_a_time(world):
    """Stop the thread that moves what a request leaves, so that a test takes its steps."""
    world.master.settler.stop()
    return world.master.settler


def test_search_without_a_limit_starts_a_thousand_trials_and_each_end_starts_the_next(world):
    experiment_id = world.client.create(wide(MOST_AT_ONCE + 5))
    store = world.master.store
    assert count(store, experiment_id, states.ACTIVE) == MOST_AT_ONCE
    world.pool.finish(world.wait_for_launch(world.client.trials(experiment_id)[0]))
    eventually(lambda: count(store, experiment_id, states.COMPLETED) == 1)
    assert count(store, experiment_id, states.ACTIVE) == MOST_AT_ONCE


@pytest.mark.parametrize("verb", ["cancel", "kill"])
def test_stop_ends_every_trial_and_the_experiment_once(world, verb):
    experiment_id = world.client.create(wide(MOST_MOVED + 50))
    launched = [world.wait_for_launch(trial) for trial in world.client.trials(experiment_id)[:2]]
    world.client.move(experiment_id, verb)
    for allocation in launched:
        if verb == "cancel":
            world.client.post(f"/api/v1/allocations/{allocation}/signals/ack_preemption")
            world.pool.finish(allocation)
    eventually(lambda: state(world, experiment_id) == states.CANCELED)
    assert count(world.master.store, experiment_id, states.CANCELED) == MOST_MOVED + 50
    with world.master.store.reading() as session:
        of_trials = TaskRow.id.in_(select(TrialRow.task_id).where(TrialRow.experiment_id == experiment_id))
        assert not session.scalar(select(func.count()).where(of_trials, TaskRow.end_time.is_(None)))
    assert len(world.pool.launched) == 2


def test_request_moves_a_part_and_says_what_is_wanted(world, one_at_a_time):
    experiment_id = world.client.create(wide(2 * MOST_MOVED), activate=False)
    world.client.move(experiment_id, "kill")
    store = world.master.store
    assert state(world, experiment_id) == states.STOPPING_KILLED
    assert count(store, experiment_id, states.CANCELED) == MOST_MOVED
    steps = 0
    while one_at_a_time.step():
        steps += 1
    assert steps == 1
    assert state(world, experiment_id) == states.CANCELED
    assert not count(store, experiment_id, *states.UNFINISHED)


def test_request_that_is_taken_back_leaves_no_trial_behind(world, one_at_a_time):
    experiment_id = world.client.create(wide(MOST_MOVED + 100))
    store = world.master.store
    world.client.move(experiment_id, "pause")
    assert 0 < count(store, experiment_id, states.ACTIVE) <= 100
    world.client.move(experiment_id, "activate")
    while one_at_a_time.step():
        pass
    assert not count(store, experiment_id, states.PAUSED)
    # The queue has noticed each of them.
    assert world.master.queue.check()


def test_master_that_was_killed_in_between_goes_on(make_world):
    world = make_world(FakePool(1))
    experiment_id = world.client.create(wide(MOST_MOVED + 200), activate=False)
    world.master.settler.stop()
    world.client.move(experiment_id, "kill")
    assert count(world.master.store, experiment_id, states.PAUSED) == 200
    make_world.stop()
    world = make_world(FakePool(1))
    eventually(lambda: state(world, experiment_id) == states.CANCELED)
    assert not count(world.master.store, experiment_id, *states.UNFINISHED)


def test_trials_that_an_earlier_release_left_follow_too(make_world):
    world = make_world(FakePool(1))
    experiment_id = world.client.create(wide(10))
    eventually(lambda: world.pool.launched)
    world.master.settler.stop()
    with world.master.store.writing() as tx:
        tx.execute(update(ExperimentRow).where(ExperimentRow.id == experiment_id).values(state=states.PAUSED))
    make_world.stop()
    world = make_world(world.pool)
    eventually(lambda: count(world.master.store, experiment_id, states.PAUSED) == 10)
    (allocation,) = world.pool.launched
    params = {"timeout_seconds": 0}
    assert world.client.get(f"/api/v1/allocations/{allocation}/signals/preemption", params=params)["preempt"]


def test_states_that_follow_are_those_that_may_become_the_wanted_one():
    for wanted in states.UNFINISHED:
        for trial in states.UNFINISHED:
            follows = trial in lifecycle.unsettled_states(wanted)
            is_stop = wanted.startswith("STOPPING")
            assert follows == (
                lifecycle.trial_may_become(trial, wanted)
                if is_stop
                else {trial, wanted} == {states.ACTIVE, states.PAUSED}
            )
    assert not any(lifecycle.unsettled_states(state) for state in states.TERMINAL)


def test_wide_search_is_deleted_in_parts(world, monkeypatch):
    monkeypatch.setattr("det_keras.master.services.experiment_deletion._MOST_ROWS", 7)
    experiment_id = world.client.create(wide(30))
    other = world.client.create(wide(3))
    trial = world.client.trials(experiment_id)[0]
    allocation = world.wait_for_launch(trial)
    for line in range(20):
        world.pool.say(allocation, f"line {line}")
        world.client.report(trial["id"], "training", line + 1, {"loss": 0.5})
    eventually(lambda: len(world.client.log(trial["id"])) >= 20)
    world.client.move(experiment_id, "kill")
    eventually(lambda: state(world, experiment_id) == states.CANCELED)
    world.client.call("DELETE", f"/api/v1/experiments/{experiment_id}")
    eventually(lambda: _is_gone(world, experiment_id))
    with world.master.store.reading() as session:
        of_others = ((TrialRow, 3), (TaskRow, 3), (MetricRow, 0))
        for model, left in of_others:
            assert session.scalar(select(func.count()).select_from(model)) == left, model
        assert session.get(AllocationRow, allocation) is None
        assert session.scalar(select(LogRow.id).where(LogRow.task_id == trial["taskId"]).limit(1)) is None
    assert count(world.master.store, other, states.ACTIVE) == 3


def _is_gone(world, experiment_id: int) -> bool:
    with world.master.store.reading() as session:
        return session.get(ExperimentRow, experiment_id) is None
