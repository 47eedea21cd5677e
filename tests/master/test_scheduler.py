"""Who gets slots next."""

from __future__ import annotations

from det_keras.master.scheduler import Grant, Request, plan


def request(name: str, slots: int = 1, order: int = 0, **more) -> Request:
    return Request(task_id=name, owner=more.pop("owner", name), slots=slots, order=order, **more)


def names(grants: list[Grant]) -> list[str]:
    return [grant.task_id for grant in grants]


def test_first_come_is_first_served():
    waiting = [request("late", order=2), request("early", order=1), request("later", order=3)]
    assert plan(waiting, [4, 1], {}) == [Grant("early", (1,)), Grant("late", (4,))]


def test_smaller_priority_goes_first():
    waiting = [request("early", order=1), request("urgent", order=2, priority=1)]
    assert names(plan(waiting, [0], {})) == ["urgent"]


def test_owner_that_uses_less_goes_first():
    waiting = [request(f"big-{i}", order=i, owner="big") for i in range(4)] + [request("small", order=9)]
    assert names(plan(waiting, [0], {"big": 1})) == ["small"]
    assert names(plan(waiting, [0, 1], {})) == ["big-0", "small"]


def test_one_that_does_not_fit_keeps_the_slots_waiting():
    waiting = [request("wide", slots=2, order=1), request("narrow", order=2)]
    assert plan(waiting, [0], {}) == []


def test_task_without_slots_runs_beside_everything():
    waiting = [request("wide", slots=2, order=1), request("none", slots=0, order=2)]
    assert plan(waiting, [], {}) == [Grant("none", ())]


def test_owner_stays_within_its_limit_and_blocks_nobody():
    waiting = [request(f"limited-{i}", order=i, owner="limited", max_slots=1) for i in range(3)]
    assert names(plan([*waiting, request("other", order=9)], [0, 1, 2], {})) == ["limited-0", "other"]
