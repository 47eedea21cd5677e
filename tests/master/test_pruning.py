"""What people ask to be deleted is shown before, and nothing else goes with it."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from det_keras.core.backend.local import RunDirectory
from det_keras.launch.environments.cache import EnvironmentCache
from det_keras.master.database.models import LogRow, TaskRow
from det_keras.protocol.values import now
from master.fakes import eventually


@pytest.fixture
def prune(world):
    def prune(**options) -> dict[str, tuple[int, int]]:
        pruned = world.client.post("/api/v1/master/prune", options)["pruned"]
        return {one["kind"]: (one["count"], one["bytes"]) for one in pruned}

    return prune


def lines(world, task_id: str) -> int:
    with world.master.store.reading() as session:
        return session.scalar(select(func.count()).where(LogRow.task_id == task_id))


def test_log_lines_of_old_tasks_are_deleted(world, prune):
    task_ids = []
    for is_ended in (True, True, False):
        _, trial, allocation_id = world.launch()
        task_ids.append(trial["taskId"])
        world.pool.say(allocation_id, "twelve bytes")
        eventually(lambda task_id=trial["taskId"]: lines(world, task_id))
        if is_ended:
            world.pool.finish(allocation_id)
            eventually(lambda trial=trial: world.client.trial(trial["id"])["endTime"])
    with world.master.store.writing() as tx:
        tx.get(TaskRow, task_ids[0]).end_time = now() - timedelta(days=8)
    before = [lines(world, task_id) for task_id in task_ids]
    count, size = prune(logDays=7)["log lines"]
    assert (count, size >= 12) == (before[0], True)
    assert [lines(world, task_id) for task_id in task_ids] == before
    assert prune(logDays=7, isDry=False)["log lines"] == (count, size)
    assert [lines(world, task_id) for task_id in task_ids] == [0, *before[1:]]
    assert prune(logDays=0, isDry=False)["log lines"][0] == before[1]
    assert [lines(world, task_id) for task_id in task_ids] == [0, 0, before[2]]


def test_old_runs_that_nobody_uses_are_deleted(world, prune):
    runs = {name: RunDirectory(world.home.runs / name) for name in ("old", "recent", "used")}
    (world.home.runs / "mine").mkdir()
    for name, run in runs.items():
        run.metrics.write_bytes(b"x" * 100)
        if name != "used":
            run.close()
    week_ago = time.time() - 8 * 86_400
    for name in ("old", "used", "mine"):
        for path in (*(world.home.runs / name).iterdir(), world.home.runs / name):
            os.utime(path, (week_ago, week_ago))
    count, size = prune(runDays=7)["runs without a master"]
    assert (count, size >= 100) == (1, True)
    assert runs["old"].metrics.exists()
    assert prune(runDays=7, isDry=False)["runs without a master"] == (count, size)
    assert sorted(path.name for path in world.home.runs.iterdir()) == ["mine", "recent", "used"]
    assert prune(runDays=0, isDry=False)["runs without a master"][0] == 1
    assert sorted(path.name for path in world.home.runs.iterdir()) == ["mine", "used"]
    runs["used"].close()


def test_environments_that_no_task_uses_are_deleted(world, prune):
    cache = EnvironmentCache(world.home.environments)

    def build(folder, _):
        folder.mkdir()
        (folder / "file").write_bytes(b"x" * 100)
        return {}

    uses = {key: cache.take(key, build, lambda: None)[2] for key in ("free", "used")}
    cache.release(uses["free"])
    count, size = prune(environments=True)["environments"]
    assert (count, size >= 100) == (1, True)
    assert (cache.folder / "free" / "file").exists()
    assert prune(environments=True, isDry=False)["environments"] == (count, size)
    assert not (cache.folder / "free").exists()
    assert (cache.folder / "used" / "file").exists()
    cache.release(uses["used"])


def test_nothing_is_deleted_that_was_not_named(world, prune):
    _, trial, allocation_id = world.launch()
    world.pool.say(allocation_id, "a line")
    world.pool.finish(allocation_id)
    eventually(lambda: world.client.trial(trial["id"])["endTime"])
    before = lines(world, trial["taskId"])
    assert before
    assert prune(isDry=False) == {}
    assert lines(world, trial["taskId"]) == before
    for days in (-1, 10**9):
        world.client.call("POST", "/api/v1/master/prune", {"logDays": days, "isDry": False}, status=400)
    assert lines(world, trial["taskId"]) == before
