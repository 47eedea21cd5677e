"""Time limits while the wall clock is set: nothing ends at once, and nothing takes hours."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from det_keras.master.database.models import AllocationRow, TrialRow
from det_keras.master.services import background, dispatcher
from det_keras.master.services.background import Deadlines
from det_keras.protocol.values import now
from master.fakes import SINGLE, eventually

HOUR = timedelta(hours=1)


@pytest.fixture
def set_clock(monkeypatch):
    """Return a function that sets the wall clock of the dispatcher."""

    def set_by(difference: timedelta) -> None:
        for module in (background, dispatcher):
            monkeypatch.setattr(module, "now", lambda: now() + difference)

    return set_by


@pytest.mark.parametrize("difference", [HOUR, -HOUR], ids=["forward", "back"])
def test_known_deadline_stays_when_the_clock_is_set(set_clock, difference):
    known: Deadlines[str] = Deadlines()
    times = {"over": now(), "later": now() + timedelta(minutes=5)}
    known.update(times)
    set_clock(difference)
    known.update(times)
    assert known.due() == {"over"}


def test_changed_and_forgotten_deadlines_are_measured_again():
    known: Deadlines[str] = Deadlines()
    known.update({"a": now(), "b": now()})
    known.update({"a": now() + HOUR})
    assert known.due() == set()
    known.update({"b": now() - HOUR})
    assert known.due() == {"b"}


def test_task_that_does_not_stop_is_killed_in_time_after_the_clock_was_set_back(world, set_clock):
    world.pool.is_stubborn = True
    experiment_id, _, allocation_id = world.launch(SINGLE + "preemption_timeout: 2\n")
    world.client.move(experiment_id, "pause")
    with world.master.store.reading() as session:
        assert session.get(AllocationRow, allocation_id).kill_at is not None
    eventually(lambda: allocation_id in world.master.dispatcher._kills._known)
    set_clock(-HOUR)
    eventually(lambda: (allocation_id, False) in world.pool.kills, 20.0)
    set_clock(-2 * HOUR)
    eventually(lambda: (allocation_id, True) in world.pool.kills, 20.0)


def test_unmanaged_trial_is_not_lost_when_the_clock_is_set_forward(world, set_clock):
    body = {"config": SINGLE, "unmanaged": True}
    number = world.client.post("/api/v1/experiments", body)["experiment"]["id"]
    trial = world.client.post("/api/v1/trials", {"experimentId": number, "unmanaged": True})["trial"]
    losses = world.master.dispatcher._losses
    eventually(lambda: trial["id"] in losses._known)
    set_clock(HOUR)
    asked = []
    due = losses.due
    losses.due = lambda: asked.append(1) or due()
    eventually(lambda: len(asked) > 2)
    with world.master.store.reading() as session:
        assert session.scalar(select(TrialRow.state).where(TrialRow.id == trial["id"])) == "ACTIVE"
