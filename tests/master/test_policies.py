"""What every scheduling policy holds to, whatever waits and runs."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.master.resources import Node, Slot
from det_keras.master.tasks.scheduling import (
    Cluster,
    FairSharePolicy,
    Grant,
    JobFacts,
    PriorityPolicy,
    Queue,
    Running,
    Waiting,
)
from det_keras.master.tasks.scheduling.fair_share import slots_per_weight

POLICIES = {
    "priority": PriorityPolicy(),
    "priority with preemption": PriorityPolicy(preemption=True),
    "fair share": FairSharePolicy(),
}
PREEMPTING = {name: policy for name, policy in POLICIES.items() if name != "priority"}


def nodes(*counts: int) -> list[Node]:
    return [
        Node(name, "10.0.0.1", [Slot(index, "cpu") for index in range(count)])
        for name, count in zip("abcdef", counts, strict=False)
    ]


def make(policy, counts, jobs=()) -> Queue:
    queue = Queue(policy.key, Cluster(nodes(*counts)))
    for name, facts, waiting in jobs:
        queue.set_job(name, facts)
        for number in range(waiting):
            queue.wait(name, Waiting(f"{name}.{number}", order=number))
    return queue


def confirm(queue: Queue, grants: list[Grant], time: int) -> None:
    """Record that tasks were started, as the dispatcher does."""
    for grant in grants:
        job = queue.job_of(grant.task_id)
        assert job is not None
        queue.run(job.id, Running(grant.task_id, grant.shares, start=time))


def leave(queue: Queue, task_id: str, time: int) -> None:
    """End a preempted task, which waits again."""
    job = queue.job_of(task_id)
    assert job is not None
    queue.remove(task_id)
    queue.wait(job.id, Waiting(task_id, order=int(task_id.split(".")[1]), since=time))


def settle(policy, queue: Queue, time: int = 1) -> int:
    """Plan until nothing changes; preempted tasks stop between the plans. Return the number of plans."""
    for count in range(100):
        plan = policy.plan(queue)
        confirm(queue, plan.grants, time + count)
        stopping = list(queue.stopping)
        if not plan.grants and not plan.preemptions and not stopping:
            return count
        for task_id in stopping:
            leave(queue, task_id, time + count)
    raise AssertionError("Tasks preempt each other forever.")


facts = st.builds(
    JobFacts,
    slots=st.integers(0, 5),
    priority=st.sampled_from([1, 42, 50]),
    weight=st.sampled_from([0.5, 1.0, 3.0]),
    max_slots=st.none() | st.integers(5, 8),
    is_preemptible=st.booleans(),
    label=st.just("experiment 1"),
)
jobs = st.lists(st.tuples(facts, st.integers(0, 8)), max_size=6)
clusters = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def named(drawn):
    return [(f"job{number}", *one) for number, one in enumerate(drawn)]


@st.composite
def states(draw, policy):
    """A queue that the policy itself has come to, in which something has changed since."""
    drawn = named(draw(jobs))
    queue = make(policy, draw(clusters))
    for place, (name, job_facts, waiting) in enumerate(drawn):
        queue.set_job(name, job_facts)
        for number in range(waiting):
            queue.wait(name, Waiting(f"{name}.{number}", order=place + number * 7 % 5))
        if draw(st.booleans()):
            confirm(queue, policy.plan(queue).grants, place)
        for task_id in list(queue.stopping):
            if draw(st.booleans()):
                leave(queue, task_id, place)
    running = [(job.id, task) for job in queue.jobs.values() for task in job.running]
    for _, task_id in running:
        if draw(st.integers(0, 3)) == 0:
            queue.remove(task_id)
    for name, job_facts, _ in drawn:
        if draw(st.integers(0, 3)) == 0:
            changed = replace(
                job_facts, priority=draw(st.sampled_from([1, 42])), weight=draw(st.sampled_from([1.0, 4.0]))
            )
            queue.set_job(name, changed)
    return queue


def used_slots(queue: Queue) -> list[tuple[str, int]]:
    return [
        (share.node, slot)
        for job in queue.jobs.values()
        for task in job.running.values()
        for share in task.shares
        for slot in share.slot_ids
    ]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_no_slot_is_given_twice_and_limits_are_kept(policy, data):
    queue = data.draw(states(policy))
    before = {task_id for job in queue.jobs.values() for task_id in job.running}
    plan = policy.plan(queue)
    used = used_slots(queue)
    assert len(used) == len(set(used))
    assert len({grant.task_id for grant in plan.grants}) == len(plan.grants)
    for grant in plan.grants:
        job = queue.job_of(grant.task_id)
        assert grant.task_id not in before
        assert sum(len(share.slot_ids) for share in grant.shares) == job.facts.slots
        if 0 < job.facts.slots <= queue.cluster.largest:
            assert len(grant.shares) == 1
    for job in queue.jobs.values():
        assert job.facts.max_slots is None or job.in_use <= max(job.facts.max_slots, 0)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_planning_again_at_once_changes_nothing(policy, data):
    queue = data.draw(states(policy))
    confirm(queue, policy.plan(queue).grants, 100)
    again = policy.plan(queue)
    assert (again.grants, again.preemptions) == ([], [])


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_preemptions_come_to_an_end(policy, data):
    queue = data.draw(states(policy))
    settle(policy, queue, 100)
    assert not queue.reservations


@pytest.mark.parametrize("policy", PREEMPTING.values(), ids=PREEMPTING)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_only_preemptible_tasks_are_preempted_and_only_for_a_task_that_starts(policy, data):
    queue = data.draw(states(policy))
    # Nothing is on its way: what starts after the stops starts because of these preemptions.
    for task_id in list(queue.stopping):
        leave(queue, task_id, 50)
    held = set(queue.reservations)
    plan = policy.plan(queue)
    confirm(queue, plan.grants, 100)
    for preemption in plan.preemptions:
        job = queue.job_of(preemption.task_id)
        assert job.facts.is_preemptible
        assert preemption.reason.startswith("experiment 1, which has")
    reserved = set(queue.reservations)
    assert not plan.preemptions or reserved - held
    for task_id in list(queue.stopping):
        leave(queue, task_id, 101)
    assert reserved <= {grant.task_id for grant in policy.plan(queue).grants}


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_preemption_by_priority_is_by_a_smaller_number_only(data):
    policy = POLICIES["priority with preemption"]
    queue = data.draw(states(policy))
    held = set(queue.reservations)
    plan = policy.plan(queue)
    gaining = [job.facts.priority for task_id, job in queue.reservations.items() if task_id not in held]
    for preemption in plan.preemptions:
        assert min(gaining) < queue.job_of(preemption.task_id).facts.priority


def test_priority_without_preemption_preempts_nothing():
    queue = make(POLICIES["priority"], [2], [("low", JobFacts(1, priority=50, is_preemptible=True), 2)])
    settle(POLICIES["priority"], queue)
    queue.set_job("high", JobFacts(1, priority=1))
    queue.wait("high", Waiting("high.0", 0))
    plan = POLICIES["priority"].plan(queue)
    assert (plan.grants, plan.preemptions) == ([], [])


@settings(deadline=None, max_examples=150)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 9.0]), min_size=1, max_size=9),
    total=st.integers(1, 24),
    order=st.randoms(use_true_random=False),
)
def test_shares_are_within_one_task_of_the_weights_when_all_ask_for_more(weights, total, order):
    policy = FairSharePolicy()
    queue = make(policy, [total])
    names = [f"job{number}" for number in range(len(weights))]
    order.shuffle(names)
    for name in names:
        # The earlier ones have taken all slots when a further one comes.
        weight = weights[int(name[3:])]
        queue.set_job(name, JobFacts(1, weight=weight, is_preemptible=True))
        for number in range(30):
            queue.wait(name, Waiting(f"{name}.{number}", number))
        settle(policy, queue)
    for name in names:
        share = total * weights[int(name[3:])] / sum(weights)
        assert abs(queue.jobs[name].in_use - share) < 1 + 1e-6
    assert sum(job.in_use for job in queue.jobs.values()) == total


@settings(deadline=None, max_examples=100)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    weights=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=5, max_size=5),
)
def test_shares_of_large_tasks_are_within_the_largest_task(sizes, weights):
    """A slot that is too small for a task is not lost: there are tasks of one slot as well."""
    policy, total = FairSharePolicy(), 20
    queue = make(policy, [total])
    sizes = [*sizes, 1]
    weights = [*weights[: len(sizes) - 1], 1.0]
    for number, size in enumerate(sizes):
        queue.set_job(f"job{number}", JobFacts(size, weight=weights[number], is_preemptible=True))
        for task in range(30):
            queue.wait(f"job{number}", Waiting(f"job{number}.{task}", task))
    settle(policy, queue)
    for number in range(len(sizes)):
        share = total * weights[number] / sum(weights)
        assert queue.jobs[f"job{number}"].in_use < share + max(sizes) + 1e-6
        assert queue.jobs[f"job{number}"].in_use > share - max(sizes) - 1e-6


@settings(deadline=None)
@given(jobs, clusters)
def test_no_job_gets_more_than_its_share_as_long_as_another_asks_for_it(drawn, counts):
    queue = make(FairSharePolicy(), counts, named(drawn))
    level, total = slots_per_weight(queue), sum(counts)
    given_out = sum(min(job.demand, level * job.facts.weight) for job in queue.jobs.values())
    assert given_out == pytest.approx(min(total, sum(job.demand for job in queue.jobs.values())))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_gang_runs_in_the_end_whoever_else_keeps_coming(policy, data):
    """Small tasks come forever and run for as long as they like: the gang is overtaken a bounded number of times."""
    total = data.draw(st.integers(2, 6))
    gang = data.draw(st.integers(2, total))
    queue = make(policy, [total])
    for number in range(total):
        queue.set_job(f"before{number}", JobFacts(1))
        queue.wait(f"before{number}", Waiting(f"before{number}.0", 0))
    settle(policy, queue, 1)
    queue.set_job("gang", JobFacts(gang))
    queue.wait("gang", Waiting("gang.0", order=10, since=10))
    given_out = 0
    for time in range(20, 20 + 20 * total):
        ended = data.draw(st.sampled_from([task for job in queue.jobs.values() for task in job.running]))
        queue.remove(ended)
        for number in range(total):
            queue.set_job(f"small{time}-{number}", JobFacts(1))
            queue.wait(f"small{time}-{number}", Waiting(f"small{time}-{number}.0", order=time, since=time))
        grants = policy.plan(queue).grants
        if "gang.0" in {grant.task_id for grant in grants}:
            assert given_out <= gang
            return
        given_out += len(grants)
        confirm(queue, grants, time)
        if not any(job.running for job in queue.jobs.values()):
            break
    raise AssertionError("The gang never ran.")


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_lists_of_the_queue_are_those_of_a_queue_that_is_made_anew(policy, data):
    queue = data.draw(states(policy))
    confirm(queue, policy.plan(queue).grants, 100)
    for task_id in list(queue.reservations):
        queue.cancel(task_id)
    anew = Queue(policy.key, Cluster(nodes(*(len(queue.cluster.unused(n)) for n in ()))))
    anew.cluster = Cluster(
        [
            Node(n, "10.0.0.1", [Slot(i, "cpu") for i in range(len(queue.cluster._numbers[n]))])
            for n in queue.cluster.nodes
        ]
    )
    for job in queue.jobs.values():
        anew.set_job(job.id, job.facts)
        for waiting in job.waiting.values():
            anew.wait(job.id, waiting)
        for running in job.running.values():
            anew.run(job.id, running)
    assert anew.ranked == queue.ranked
    assert anew.levels == queue.levels
    assert +anew.losable == +queue.losable
    assert {key: sums[0] for key, sums in anew.quotients.items()} == {
        key: sums[0] for key, sums in queue.quotients.items()
    }
    assert anew.cluster._free == queue.cluster._free
    assert anew.cluster.free == queue.cluster.free


def test_preempted_slots_go_to_the_task_that_they_were_freed_for():
    policy = POLICIES["priority with preemption"]
    low = JobFacts(1, priority=50, is_preemptible=True)
    queue = make(policy, [2, 2], [("low", low, 6)])
    confirm(queue, policy.plan(queue).grants, 1)
    queue.set_job("high", JobFacts(2, priority=10, label="experiment 5"))
    queue.wait("high", Waiting("high.0", 9))
    plan = policy.plan(queue)
    assert {one.reason for one in plan.preemptions} == {"experiment 5, which has priority 10"}
    assert len(plan.preemptions) == 2
    first, second = (one.task_id for one in plan.preemptions)
    leave(queue, first, 2)
    # One of two slots is free; neither the waiting small tasks nor further preemptions use it.
    plan = policy.plan(queue)
    assert (plan.grants, plan.preemptions) == ([], [])
    leave(queue, second, 3)
    assert [grant.task_id for grant in policy.plan(queue).grants] == ["high.0"]


def test_slots_that_are_left_for_one_task_serve_a_second_one_as_well():
    """A task of five slots that stops for one of four leaves, with those that are free, enough for another one."""
    policy = POLICIES["priority with preemption"]
    queue = make(policy, [4, 4], [("low", JobFacts(5, priority=42, is_preemptible=True), 1)])
    confirm(queue, policy.plan(queue).grants, 1)
    queue.set_job("high", JobFacts(4, priority=1))
    queue.set_job("small", JobFacts(2, priority=42, is_preemptible=True))
    for task_id in ("high.0", "high.1", "small.0"):
        queue.wait(task_id.split(".")[0], Waiting(task_id, 9))
    plan = policy.plan(queue)
    assert [one.task_id for one in plan.preemptions] == ["low.0"]
    assert plan.grants == []
    assert set(queue.reservations) == {"high.0", "high.1"}


def test_freed_slots_go_to_a_task_of_higher_priority_that_came_meanwhile():
    policy = POLICIES["priority with preemption"]
    queue = make(policy, [1], [("low", JobFacts(1, priority=50, is_preemptible=True), 1)])
    confirm(queue, policy.plan(queue).grants, 1)
    queue.set_job("middle", JobFacts(1, priority=42, is_preemptible=True))
    queue.wait("middle", Waiting("middle.0", 2))
    assert [one.task_id for one in policy.plan(queue).preemptions] == ["low.0"]
    queue.set_job("high", JobFacts(1, priority=1))
    queue.wait("high", Waiting("high.0", 3))
    leave(queue, "low.0", 4)
    plan = policy.plan(queue)
    # And not to the one that they were reserved for, which would have to stop at once.
    assert ([one.task_id for one in plan.grants], plan.preemptions) == (["high.0"], [])


def test_reservation_of_a_task_that_was_killed_is_free_for_others():
    policy = POLICIES["priority with preemption"]
    low = JobFacts(1, priority=50, is_preemptible=True)
    queue = make(policy, [1], [("low", low, 1)])
    confirm(queue, policy.plan(queue).grants, 1)
    queue.set_job("high", JobFacts(1, priority=10))
    queue.wait("high", Waiting("high.0", 9))
    assert len(policy.plan(queue).preemptions) == 1
    queue.drop_job("high")
    leave(queue, "low.0", 2)
    assert [grant.task_id for grant in policy.plan(queue).grants] == ["low.0"]
    assert "high" not in queue.jobs


def test_change_of_weights_moves_slots():
    policy = FairSharePolicy()
    one = JobFacts(1, is_preemptible=True, label="experiment 1")
    queue = make(policy, [4], [("a", one, 9), ("b", one, 9)])
    settle(policy, queue)
    assert (queue.jobs["a"].in_use, queue.jobs["b"].in_use) == (2, 2)
    queue.set_job("a", replace(one, weight=3.0))
    settle(policy, queue, 20)
    assert (queue.jobs["a"].in_use, queue.jobs["b"].in_use) == (3, 1)


def test_copy_of_a_queue_plans_the_same():
    policy = FairSharePolicy()
    queue = make(policy, [3, 2], [("a", JobFacts(2), 3), ("b", JobFacts(1, weight=2.0), 3)])
    assert policy.plan(copy.deepcopy(queue)) == policy.plan(queue)
