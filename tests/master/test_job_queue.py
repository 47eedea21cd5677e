"""The queue in the REST API: its order, what its jobs wait for, and its changes by users."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_keras.master.experiments.queue_updates import moved
from det_keras.master.tasks.scheduling import FairSharePolicy
from master.fakes import SINGLE, FakePool, eventually


@pytest.fixture
def world(make_world):
    """A master whose slots are all in use."""
    world = make_world(FakePool(2))
    world.launch(SINGLE + "resources: {slots_per_trial: 2}\n")
    return world


def queued(world):
    jobs = [entry["full"] for entry in world.client.get("/api/v1/job-queues-v2?states=STATE_QUEUED")["jobs"]]
    return {job["entityId"]: job for job in jobs}


def update(world, **change):
    return world.client.post("/api/v1/job-queues", {"updates": [change]})


def create(world, count: int):
    numbers = [str(world.client.create(SINGLE)) for _ in range(count)]
    ids = {number: job["jobId"] for number, job in queued(world).items()}
    return numbers, ids


def test_job_moves_ahead_of_and_behind_another_and_stays_there(world, make_world):
    (a, b, c), ids = create(world, 3)
    assert list(queued(world)) == [a, b, c]
    update(world, jobId=ids[c], aheadOf=ids[a])
    assert list(queued(world)) == [c, a, b]
    update(world, jobId=ids[c], behindOf=ids[a])
    assert list(queued(world)) == [a, c, b]
    pool = world.pool
    make_world.stop()
    again = make_world(pool)
    assert list(queued(again)) == [a, c, b]
    pool.finish(next(iter(pool.launched)))
    first, second = (again.client.trials(int(number))[0] for number in (a, c))
    again.wait_for_launch(first)
    again.wait_for_launch(second)
    assert list(queued(again)) == [b]


def test_priority_and_weight_of_a_job_change(world):
    (a, b), ids = create(world, 2)
    update(world, jobId=ids[b], priority=3)
    update(world, jobId=ids[a], weight=2.5)
    found = queued(world)
    assert list(found) == [b, a]
    assert (found[b]["priority"], found[a]["weight"]) == (3, 2.5)
    assert world.client.experiment(int(b))["config"]["resources"]["priority"] == 3


def test_generic_job_is_changed_like_an_experiment(world):
    (a,), ids = create(world, 1)
    task = world.client.post("/api/v1/commands", {"config": {"entrypoint": ["a"]}})["command"]
    assert list(queued(world)) == [a, task["id"]]
    update(world, jobId=task["jobId"], aheadOf=ids[a])
    assert list(queued(world)) == [task["id"], a]
    update(world, jobId=ids[a], priority=1)
    assert list(queued(world)) == [a, task["id"]]


@pytest.mark.parametrize(
    ("change", "status", "part"),
    [
        ({"priority": 0}, 400, "1 to 99"),
        ({"weight": 0}, 400, "above 0"),
        ({"resourcePool": "gpus"}, 400, "has one, 'default'"),
        ({"aheadOf": "nobody"}, 404, "'nobody' not found"),
        ({"jobId": "nobody", "priority": 3}, 404, "'nobody' not found"),
    ],
)
def test_impossible_change_is_refused_and_says_why(world, change, status, part):
    (a,), ids = create(world, 1)
    answer = world.client.post(
        "/api/v1/job-queues", {"updates": [{"jobId": ids[a], **change}]}, status=status
    )
    assert part in answer["error"]["error"]


def test_move_between_priorities_is_refused_and_nothing_else_is_changed(world):
    (a, b), ids = create(world, 2)
    updates = [
        {"jobId": ids[a], "priority": 3},
        {"jobId": ids[b], "aheadOf": ids[a]},
    ]
    answer = world.client.post("/api/v1/job-queues", {"updates": updates}, status=400)
    assert "Jobs of different priorities keep their order" in answer["error"]["error"]
    assert queued(world)[a]["priority"] == 42


@given(st.lists(st.integers(0, 6), min_size=2, max_size=8), st.data())
def test_moved_job_is_next_to_the_other_and_no_other_pair_changes_places(places, data):
    line = [(f"job{number}", place) for number, place in enumerate(places)]
    names = [name for name, _ in line]
    job = data.draw(st.sampled_from(names))
    anchor = data.draw(st.sampled_from([name for name in names if name != job]))
    is_ahead = data.draw(st.booleans())
    new = {**dict(line), **moved(line, job, anchor, is_ahead=is_ahead)}

    def order(known):
        return sorted(known, key=lambda name: (known[name], name))

    expected = [name for name in order(dict(line)) if name != job]
    expected.insert(expected.index(anchor) + (not is_ahead), job)
    assert order(new) == expected


def test_waiting_trial_says_what_it_waits_for_in_slots(world):
    number = world.client.create(SINGLE + "resources: {slots_per_trial: 2}\n")
    later = world.client.create(SINGLE)
    experiment = world.client.experiment(number)
    assert experiment["waitReason"] == "waits for 2 slots: 0 of 2 are free, no tasks are ahead"
    (trial,) = world.client.trials(later)
    expected = "waits for a slot: 0 of 2 are free, 1 task is ahead"
    assert world.client.trial(trial["id"])["waitReason"] == expected
    assert queued(world)[str(later)]["waitReason"] == expected
    assert world.client.experiment(1)["waitReason"] == ""
    page = world.http.get("/cluster", headers={"Authorization": f"Bearer {world.client.token}"}).text
    assert expected in page


def test_reasons_name_limits_machines_and_clusters_that_are_too_small(make_world):
    world = make_world(FakePool(2, 2))
    world.launch(SINGLE)
    world.launch(SINGLE + "resources: {slots_per_trial: 2}\n")
    search = (
        "entrypoint: a\nhyperparameters: {x: {type: double, minval: 0, maxval: 1}}\n"
        "searcher: {name: random, metric: loss, max_trials: 3, max_concurrent_trials: 3}\n"
        "resources: {max_slots: 1}\n"
    )
    limited = world.client.create(search)
    eventually(lambda: world.client.get("/api/v1/resource-pools")["resourcePools"][0]["slotsUsed"] == 4)
    assert "may use 1 slots at once (`resources.max_slots`)" in world.client.experiment(limited)["waitReason"]
    both = world.client.create(SINGLE + "resources: {slots_per_trial: 2}\n")
    assert world.client.experiment(both)["waitReason"].startswith("waits for 2 slots on one machine: 0 of 4")
    big = world.client.create(SINGLE + "resources: {slots_per_trial: 4}\n")
    world.pool.machines = world.pool.machines[:1]
    assert world.client.experiment(big)["waitReason"] == "waits for 4 slots: the cluster has 2 now"
    # Neither the task that is too large nor those of the limited search would get the next slots.
    last = world.client.create(SINGLE)
    assert world.client.experiment(last)["waitReason"].endswith("are free, 1 task is ahead")


def test_scheduler_of_the_master_is_shown(make_world):
    world = make_world(FakePool(1), policy=FairSharePolicy())
    world.launch()
    (pool,) = world.client.get("/api/v1/resource-pools")["resourcePools"]
    assert pool["schedulerType"] == "SCHEDULER_TYPE_FAIR_SHARE"
    (task,) = world.client.get("/api/v1/tasks")["allocationIdToSummary"].values()
    assert task["schedulerType"] == "fair_share"


def test_queue_of_many_jobs_is_paged_with_few_statements(world):
    from sqlalchemy import event

    for _ in range(30):
        world.client.create(SINGLE)
    statements = []
    event.listen(world.master.store.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    answer = world.client.get("/api/v1/job-queues-v2?limit=20&offset=5")
    assert [entry["full"]["entityId"] for entry in answer["jobs"]] == [str(n) for n in range(6, 26)]
    assert answer["pagination"]["total"] == 31
    assert len([text for text in statements if "FROM experiments" in text]) <= 2
