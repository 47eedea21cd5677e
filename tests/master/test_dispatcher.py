"""When the dispatcher works, and what it has stored before a task starts."""

from __future__ import annotations

import time

import pytest

from det_keras.master.database.models import AllocationRow
from det_keras.master.database.notifier import WORK
from det_keras.master.resources import Launch
from master.fakes import FakePool, eventually


class RecordingPool(FakePool):
    """Reads the stored state of an attempt when it is launched."""

    def __init__(self, starts_at_once: bool) -> None:
        super().__init__()
        self.is_instant = starts_at_once
        self.stored: list[str] = []

    @property
    def starts_at_once(self) -> bool:
        return self.is_instant

    def launch(self, launch: Launch) -> None:
        with self.store.reading() as session:
            self.stored.append(session.get(AllocationRow, launch.allocation_id).state)
        super().launch(launch)


@pytest.mark.parametrize(("starts_at_once", "state"), [(True, "RUNNING"), (False, "STARTING")])
def test_attempt_is_stored_as_running_with_its_launch_if_the_pool_starts_at_once(
    make_world, starts_at_once, state
):
    pool = RecordingPool(starts_at_once)
    world = make_world(pool)
    pool.store = world.master.store
    _, trial, _ = world.launch()
    assert pool.stored == [state]
    eventually(lambda: world.client.trial(trial["id"])["state"] == "STATE_RUNNING")


def test_event_during_a_round_causes_another_round(world, monkeypatch):
    queue, times = world.master.queue, []
    plan = queue.plan

    def plan_and_be_disturbed(most: int):
        times.append(time.monotonic())
        if len(times) == 1:
            world.master.notifier.notify(WORK)
        return plan(most)

    monkeypatch.setattr(queue, "plan", plan_and_be_disturbed)
    eventually(lambda: len(times) > 1)
    # Without an event, the next round is a second later.
    assert times[1] - times[0] < 0.5


def test_end_of_a_task_causes_one_round(world, monkeypatch):
    _, _, allocation_id = world.launch()
    queue, times = world.master.queue, []
    plan = queue.plan

    def count_and_plan(most: int):
        with world.master.store.reading() as session:
            if session.get(AllocationRow, allocation_id).end_time is not None:
                times.append(time.monotonic())
        return plan(most)

    monkeypatch.setattr(queue, "plan", count_and_plan)
    world.pool.finish(allocation_id)
    eventually(lambda: len(times) > 1)
    # The second is the check of everything, once a second.
    assert times[1] - times[0] > 0.5
