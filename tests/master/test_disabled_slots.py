"""Slots and machines that administrators put out of use: who leaves them, who may not, and what waits meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from det_keras.master.database.models import AllocationRow, DisabledSlotRow
from det_keras.master.resources import Node, Share, Slot
from det_keras.master.tasks.scheduling import (
    Cluster,
    FairSharePolicy,
    JobFacts,
    PriorityPolicy,
    Queue,
    Running,
    Waiting,
)
from det_keras.protocol.values import now
from master.fakes import SINGLE, FakePool, eventually
from master.test_doors import login
from master.test_preemption import acknowledge, is_asked, lines

JOB = {"config": {"entrypoint": ["sleep"], "resources": {"slots": 1}}}
SLOTLESS = {"config": {"entrypoint": ["sleep"], "resources": {"slots": 0}}}
MACHINE = "/api/v1/agents/machine-0"


@pytest.fixture
def world(make_world):
    return make_world(FakePool(1, 1))


@pytest.fixture
def admin(world):
    return login(world, "admin", world.home.admin_password_file.read_text())


def administrator(world):
    return login(world, "admin", world.home.admin_password_file.read_text())


def machine_of(world, allocation_id: str) -> str:
    (share,) = world.pool.launched[allocation_id].shares
    return share.node


def agent(world, name="machine-0"):
    return world.client.get(f"/api/v1/agents/{name}")["agent"]


def run_job(world, body=JOB) -> str:
    allocation_id = f"{world.client.post('/api/v1/commands', body)['command']['id']}.1"
    eventually(lambda: allocation_id in world.pool.launched)
    return allocation_id


def test_trial_leaves_a_disabled_slot_and_resumes_elsewhere_without_a_restart(world, admin):
    _, trial, first = world.launch(SINGLE + "max_restarts: 0\n")
    node = machine_of(world, first)
    shape = admin.post(f"/api/v1/agents/{node}/slots/0/disable")["slot"]
    assert (shape["enabled"], shape["draining"]) == (False, False)
    assert is_asked(world, first)
    with world.master.store.reading() as session:
        # It has a minute for its checkpoint, not the hour of a pause.
        assert (
            timedelta(seconds=30) < session.get(AllocationRow, first).kill_at - now() <= timedelta(seconds=60)
        )
    assert f"Slot 0 of machine {node} was disabled by admin: trial {trial['id']} stops" in lines(world, trial)
    acknowledge(world, first)
    second = world.wait_for_launch(trial, 2)
    assert machine_of(world, second) != node
    assert world.client.trial(trial["id"])["restarts"] == 0
    world.pool.finish(second)
    world.client.wait_for_state(trial["experimentId"], "COMPLETED")


def test_trial_that_does_not_stop_is_killed_and_resumes_without_a_restart(world, admin):
    _, trial, first = world.launch(SINGLE + "max_restarts: 0\npreemption_timeout: 0\n")
    admin.post(f"/api/v1/agents/{machine_of(world, first)}/disable")
    eventually(lambda: (first, False) in world.pool.kills)
    world.wait_for_launch(trial, 2)
    assert world.client.trial(trial["id"])["restarts"] == 0


def test_job_on_a_disabled_slot_is_killed(world, admin):
    first = run_job(world)
    admin.post(f"/api/v1/agents/{machine_of(world, first)}/disable", {})
    eventually(lambda: (first, False) in world.pool.kills)
    task_id = first.removesuffix(".1")
    eventually(lambda: world.client.get(f"/api/v1/commands/{task_id}")["command"]["exitStatus"] == "killed")


def test_drained_slot_keeps_its_task_and_gets_no_other(make_world):
    world = make_world(FakePool(1))
    _, trial, first = world.launch(SINGLE)
    shape = administrator(world).post(f"{MACHINE}/disable", {"drain": True})["agent"]
    assert (shape["enabled"], shape["draining"]) == (False, True)
    assert (shape["slots"]["0"]["enabled"], shape["slots"]["0"]["draining"]) == (False, True)
    assert shape["slots"]["0"]["container"] is not None
    waiting = world.client.create(SINGLE)
    assert not is_asked(world, first)
    assert world.client.get("/api/v1/resource-pools")["resourcePools"][0]["slotsAvailable"] == 1
    world.pool.finish(first)
    world.client.wait_for_state(trial["experimentId"], "COMPLETED")
    assert world.client.experiment(waiting)["state"] == "STATE_QUEUED"
    assert world.client.get("/api/v1/resource-pools")["resourcePools"][0]["slotsAvailable"] == 0
    (other,) = world.client.trials(waiting)
    administrator(world).post(f"{MACHINE}/enable")
    world.wait_for_launch(other)


def test_drained_slot_that_is_disabled_again_loses_its_task(world, admin):
    _, _, first = world.launch()
    path = f"/api/v1/agents/{machine_of(world, first)}/slots/0/disable"
    admin.post(path, {"drain": True})
    assert not is_asked(world, first)
    admin.post(path, {"drain": False})
    assert is_asked(world, first)


def test_what_waits_for_disabled_slots_says_so(make_world):
    world = make_world(FakePool(2))
    administrator(world).post(f"{MACHINE}/slots/1/disable")
    number = world.client.create(SINGLE + "resources: {slots_per_trial: 2}\n")
    reason = world.client.experiment(number)["waitReason"]
    assert reason == "waits for 2 slots: the cluster has 1 now, and 1 out of use"
    administrator(world).post(f"{MACHINE}/slots/1/enable")
    world.wait_for_launch(world.client.trials(number)[0])


def test_task_without_slots_waits_for_its_machine_and_leaves_it(make_world):
    world = make_world(FakePool(1))
    first = run_job(world, SLOTLESS)
    # A slot alone is no reason to stop it.
    administrator(world).post(f"{MACHINE}/slots/0/disable")
    assert world.pool.kills == []
    administrator(world).post(f"{MACHINE}/disable")
    eventually(lambda: (first, False) in world.pool.kills)
    job = world.client.post("/api/v1/commands", SLOTLESS)["command"]
    eventually(
        lambda: (
            [one["full"]["waitReason"] for one in world.client.get("/api/v1/job-queues-v2")["jobs"]]
            == ["waits for its machine, which is out of use"]
        )
    )
    assert f"{job['id']}.1" not in world.pool.launched
    administrator(world).post(f"{MACHINE}/enable")
    eventually(lambda: f"{job['id']}.1" in world.pool.launched)
    # The slot was disabled by itself.
    assert agent(world)["slots"]["0"]["enabled"] is False


def test_disabled_slots_stay_so_over_a_restart(make_world):
    world = make_world(FakePool(1))
    administrator(world).post(f"{MACHINE}/slots/0/disable", {"drain": True})
    make_world.stop()
    world = make_world(FakePool(1))
    shape = agent(world)
    assert (shape["enabled"], shape["slots"]["0"]["enabled"], shape["slots"]["0"]["draining"]) == (
        True,
        False,
        True,
    )
    number = world.client.create()
    assert "1 out of use" in world.client.experiment(number)["waitReason"]
    assert world.pool.launched == {}


def test_slot_that_is_disabled_between_plan_and_launch_gets_no_task(make_world, monkeypatch):
    world = make_world(FakePool(1))
    plan = world.master.queue.plan

    def late(most):
        decided = plan(most)
        if decided[0].grants:
            with world.master.store.writing() as tx:
                if tx.get(DisabledSlotRow, ("machine-0", 0)) is None:
                    tx.add(DisabledSlotRow(node="machine-0", slot=0))
        return decided

    monkeypatch.setattr(world.master.queue, "plan", late)
    number = world.client.create()
    eventually(lambda: "out of use" in world.client.experiment(number)["waitReason"])
    assert world.pool.launched == {}


def test_only_administrators_disable_and_enable_slots(world, admin):
    _, _, allocation_id = world.launch()
    token = world.pool.launched[allocation_id].variables["DET_SESSION_TOKEN"]
    paths = [f"{MACHINE}/{verb}" for verb in ("disable", "enable")]
    paths += [f"{MACHINE}/slots/0/{verb}" for verb in ("disable", "enable")]
    own = world.client.token
    for path in paths:
        world.client.post(path, {}, status=403)
        world.client.token = token
        world.client.post(path, {}, status=403)
        world.client.token = own
        admin.post(path, {})
    assert agent(world)["enabled"]


def test_unknown_machines_and_slots_are_told(world, admin):
    for path in (
        "/api/v1/agents/nope/disable",
        "/api/v1/agents/nope/slots/0/enable",
        f"{MACHINE}/slots/7/disable",
    ):
        assert "not found" in admin.post(path, {}, status=404)["error"]["error"]
    admin.post(f"{MACHINE}/slots/x/disable", {}, status=400)
    assert [slot["id"] for slot in world.client.get(f"{MACHINE}/slots")["slots"]] == ["0"]
    assert world.client.get(f"{MACHINE}/slots/0")["slot"]["enabled"]


# --- The plans.


def queue_of(policy, slots: int, usable: int):
    """Return a queue with a draining task on the last slot, of low priority, and one that waits for two slots."""
    machine = Node("here", "127.0.0.1", [Slot(index, "cpu") for index in range(usable)])
    queue = Queue(policy.key, Cluster([machine]))
    for number in range(slots):
        queue.set_job(f"low-{number}", JobFacts(1, priority=90, is_preemptible=True))
        share = Share("here", (number,))
        queue.run(f"low-{number}", Running(f"low-{number}", (share,), start=number + 1))
    queue.set_job("high", JobFacts(2, priority=1, weight=99.0, is_preemptible=True))
    queue.wait("high", Waiting("high", 9))
    return queue


@pytest.mark.parametrize("policy", [PriorityPolicy(preemption=True), FairSharePolicy()])
def test_no_task_is_preempted_for_a_slot_that_drains(policy):
    plan = policy.plan(queue_of(policy, 4, 3))
    assert "low-3" not in {preemption.task_id for preemption in plan.preemptions}
    assert len(plan.preemptions) == 2
    # Two draining slots leave too few.
    assert policy.plan(queue_of(policy, 3, 1)).preemptions == []


def test_reservation_of_a_slot_that_is_disabled_is_given_up():
    policy = PriorityPolicy(preemption=True)
    queue = queue_of(policy, 2, 2)
    assert len(policy.plan(queue).preemptions) == 2
    assert list(queue.reservations) == ["high"]
    queue.cluster.resize([Node("here", "127.0.0.1", [Slot(0, "cpu")])], disabled=1)
    assert policy.plan(queue).grants == []
    assert list(queue.reservations) == []
