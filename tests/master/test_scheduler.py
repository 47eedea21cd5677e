"""Who gets slots next by priority, without preemption."""

from __future__ import annotations

from det_keras.master.resources import Node, Share, Slot
from det_keras.master.tasks.scheduling import (
    Cluster,
    JobFacts,
    PriorityPolicy,
    Queue,
    Running,
    Waiting,
)

POLICY = PriorityPolicy()


def request(name: str, slots: int = 1, order: int = 0, **more):
    """Return a waiting task, its job, and the number of slots that others were given since it began to wait."""
    overtaken = more.pop("overtaken_slots", 0)
    return more.pop("owner", name), JobFacts(slots, **more), Waiting(name, order, since=0), overtaken


def queue_of(waiting, cluster: Cluster, in_use) -> Queue:
    queue = Queue(POLICY.key, cluster)
    for owner, facts, task, overtaken in waiting:
        queue.set_job(owner, facts)
        queue.wait(owner, task)
        queue.remember_start(1, overtaken)
    for owner, slots in in_use.items():
        if owner not in queue.jobs:
            queue.set_job(owner, JobFacts(1))
        # On a machine that is gone.
        share = Share("elsewhere", tuple(range(slots)))
        queue.run(owner, Running(f"{owner}'s", (share,), start=0))
    return queue


def start(waiting, free, in_use, total: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the tasks that start on one machine, each with its slots."""
    machine = Node("here", "127.0.0.1", [Slot(index, "cpu") for index in range(total)])
    cluster = Cluster([machine], {"here": set(range(total)).difference(free)})
    return [
        (grant.task_id, tuple(slot for share in grant.shares for slot in share.slot_ids))
        for grant in POLICY.plan(queue_of(waiting, cluster, in_use)).grants
    ]


def names(grants: list[tuple[str, tuple[int, ...]]]) -> list[str]:
    return [name for name, _ in grants]


def test_first_come_is_first_served():
    waiting = [request("late", order=2), request("early", order=1), request("later", order=3)]
    assert start(waiting, [4, 1], {}, 5) == [("early", (1,)), ("late", (4,))]


def test_smaller_priority_goes_first():
    waiting = [request("early", order=1), request("urgent", order=2, priority=1)]
    assert names(start(waiting, [0], {}, 1)) == ["urgent"]


def test_owner_that_uses_less_goes_first():
    waiting = [request(f"big-{i}", order=i, owner="big") for i in range(4)] + [request("small", order=9)]
    assert names(start(waiting, [0], {"big": 1}, 2)) == ["small"]
    assert names(start(waiting, [0, 1], {}, 2)) == ["big-0", "small"]


def test_small_task_passes_a_gang_that_does_not_fit_yet():
    waiting = [request("gang", slots=2, order=1), request("small", order=2)]
    assert names(start(waiting, [0], {}, 2)) == ["small"]


def test_gang_that_has_lent_its_slots_keeps_the_free_ones():
    waiting = [request("gang", slots=2, order=1, overtaken_slots=2), request("small", order=2)]
    assert start(waiting, [0], {}, 2) == []
    assert start(waiting, [0, 1], {}, 2) == [("gang", (0, 1))]


def test_gang_lends_no_more_than_it_has_left():
    waiting = [
        request("gang", slots=4, order=1, overtaken_slots=3),
        *(request(f"small-{i}", order=i) for i in range(2, 5)),
    ]
    assert names(start(waiting, [0, 1, 2], {}, 4)) == ["small-2"]


def test_task_that_needs_more_slots_than_there_are_keeps_none_from_others():
    waiting = [request("giant", slots=3, order=1, overtaken_slots=3), request("small", order=2)]
    assert names(start(waiting, [0], {}, 2)) == ["small"]


def test_task_without_slots_runs_beside_everything():
    waiting = [request("gang", slots=2, order=1, overtaken_slots=2), request("none", slots=0, order=2)]
    assert start(waiting, [], {}, 2) == [("none", ())]


def test_owner_stays_within_its_limit_and_blocks_nobody():
    waiting = [request(f"limited-{i}", order=i, owner="limited", max_slots=1) for i in range(3)]
    assert names(start([*waiting, request("other", order=9)], [0, 1, 2], {}, 3)) == ["limited-0", "other"]


def nodes(*counts: int) -> list[Node]:
    return [
        Node(name, "10.0.0.1", [Slot(index, "cpu") for index in range(count)])
        for name, count in zip("abcdef", counts, strict=False)
    ]


def test_what_one_node_can_hold_gets_one_node_and_the_fullest():
    cluster = Cluster(nodes(4, 4), {"a": {0}})
    assert [(share.node, share.slot_ids) for share in cluster.take(2)] == [("a", (1, 2))]
    assert [(share.node, share.slot_ids) for share in cluster.take(4)] == [("b", (0, 1, 2, 3))]
    # One slot is left, on one node.
    assert cluster.take(2) is None


def test_what_no_node_can_hold_gets_as_few_as_possible():
    cluster = Cluster(nodes(2, 4, 3), {})
    assert [(share.node, len(share.slot_ids)) for share in cluster.take(6)] == [("b", 4), ("c", 2)]
    assert cluster.take(5) is None


def test_what_waits_for_slots_is_told_in_order_and_what_its_owner_limits_is_not():
    waiting = [
        request("limited", order=1, owner="limited", max_slots=1),
        request("limited too", order=2, owner="limited", max_slots=1),
        request("second", slots=9, order=4),
        request("first", slots=2, order=3),
    ]
    queue = queue_of(waiting, Cluster(nodes(2)), {})
    assert [grant.task_id for grant in POLICY.plan(queue).grants] == ["limited"]
    assert queue.lacking(10) == [2, 9]
    assert queue.lacking(1) == [2]


def test_node_that_is_gone_gets_no_task_and_one_that_comes_does():
    cluster = Cluster(nodes(1, 2), {"b": {0}})
    cluster.resize(nodes(1))
    assert (cluster.total, cluster.free, cluster.largest) == (1, 1, 1)
    cluster.resize(nodes(1, 2, 3))
    assert cluster.free == 5
    assert [(share.node, share.slot_ids) for share in cluster.take(1)] == [("a", (0,))]
    assert [(share.node, share.slot_ids) for share in cluster.take(1)] == [("b", (1,))]


def test_slot_that_two_tasks_claim_is_free_when_both_have_left_it():
    """Ray may place a task elsewhere than the master assumed."""
    cluster = Cluster(nodes(1))
    share = [Share("a", (0,))]
    cluster.claim(share)
    cluster.claim(share)
    cluster.give(share)
    assert cluster.take(1) is None
    cluster.give(share)
    assert cluster.take(1) is not None
