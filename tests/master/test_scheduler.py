"""Who gets slots next."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.master.tasks.scheduler import Grant, Request, plan


def request(name: str, slots: int = 1, order: int = 0, **more) -> Request:
    return Request(task_id=name, owner=more.pop("owner", name), slots=slots, order=order, **more)


def names(grants: list[Grant]) -> list[str]:
    return [grant.task_id for grant in grants]


def test_first_come_is_first_served():
    waiting = [request("late", order=2), request("early", order=1), request("later", order=3)]
    assert plan(waiting, [4, 1], {}, 5) == [Grant("early", (1,)), Grant("late", (4,))]


def test_smaller_priority_goes_first():
    waiting = [request("early", order=1), request("urgent", order=2, priority=1)]
    assert names(plan(waiting, [0], {}, 1)) == ["urgent"]


def test_owner_that_uses_less_goes_first():
    waiting = [request(f"big-{i}", order=i, owner="big") for i in range(4)] + [request("small", order=9)]
    assert names(plan(waiting, [0], {"big": 1}, 2)) == ["small"]
    assert names(plan(waiting, [0, 1], {}, 2)) == ["big-0", "small"]


def test_small_task_passes_a_gang_that_does_not_fit_yet():
    waiting = [request("gang", slots=2, order=1), request("small", order=2)]
    assert names(plan(waiting, [0], {}, 2)) == ["small"]


def test_gang_that_has_lent_its_slots_keeps_the_free_ones():
    waiting = [request("gang", slots=2, order=1, overtaken_slots=2), request("small", order=2)]
    assert plan(waiting, [0], {}, 2) == []
    assert plan(waiting, [0, 1], {}, 2) == [Grant("gang", (0, 1))]


def test_gang_lends_no_more_than_it_has_left():
    waiting = [
        request("gang", slots=4, order=1, overtaken_slots=3),
        *(request(f"small-{i}", order=i) for i in range(2, 5)),
    ]
    assert names(plan(waiting, [0, 1, 2], {}, 4)) == ["small-2"]


def test_task_that_needs_more_slots_than_there_are_keeps_none_from_others():
    waiting = [request("giant", slots=3, order=1, overtaken_slots=3), request("small", order=2)]
    assert names(plan(waiting, [0], {}, 2)) == ["small"]


def test_task_without_slots_runs_beside_everything():
    waiting = [request("gang", slots=2, order=1, overtaken_slots=2), request("none", slots=0, order=2)]
    assert plan(waiting, [], {}, 2) == [Grant("none", ())]


def test_owner_stays_within_its_limit_and_blocks_nobody():
    waiting = [request(f"limited-{i}", order=i, owner="limited", max_slots=1) for i in range(3)]
    assert names(plan([*waiting, request("other", order=9)], [0, 1, 2], {}, 3)) == ["limited-0", "other"]


requests = st.lists(
    st.builds(
        Request,
        task_id=st.uuids().map(str),
        owner=st.sampled_from("abc"),
        slots=st.integers(0, 5),
        order=st.integers(0, 100),
        priority=st.sampled_from([1, 42]),
        max_slots=st.none() | st.integers(0, 6),
        overtaken_slots=st.integers(0, 6),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(requests, st.sets(st.integers(0, 7)), st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)))
def test_no_slot_is_given_twice_and_no_limit_is_passed(waiting, free, in_use):
    grants = plan(waiting, sorted(free), in_use, 8)
    given_slots = [slot for grant in grants for slot in grant.slot_ids]
    assert len(given_slots) == len(set(given_slots))
    assert set(given_slots) <= free
    by_id = {one.task_id: one for one in waiting}
    used = dict(in_use)
    for grant in grants:
        one = by_id[grant.task_id]
        assert len(grant.slot_ids) == one.slots
        used[one.owner] = used.get(one.owner, 0) + one.slots
        assert one.max_slots is None or used[one.owner] <= one.max_slots


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_gang_runs_in_the_end_whoever_else_keeps_coming(data):
    """Small tasks come for ever and run for as long as they like: the gang is overtaken a bounded number of times."""
    total = data.draw(st.integers(2, 6))
    gang = data.draw(st.integers(2, total))
    running = dict.fromkeys(range(total), "before")
    overtaken_slots, order = 0, 1
    for _ in range(20 * total):
        busy = sorted(running)
        if busy:
            del running[data.draw(st.sampled_from(busy))]
        free = [slot for slot in range(total) if slot not in running]
        waiting = [request("gang", slots=gang, order=0, overtaken_slots=overtaken_slots)]
        waiting += [request(f"small-{order + i}", order=order + i) for i in range(total)]
        order += total
        for grant in plan(waiting, free, {}, total):
            if grant.task_id == "gang":
                assert overtaken_slots <= gang
                return
            overtaken_slots += len(grant.slot_ids)
            running.update(dict.fromkeys(grant.slot_ids, grant.task_id))
    raise AssertionError("The gang never ran.")
