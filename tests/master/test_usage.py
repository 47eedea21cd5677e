"""What the files of a master occupy, and the folders of tasks that have ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from det_keras.master import usage
from det_keras.master.database.models import AllocationRow, CheckpointRow
from det_keras.protocol.values import now
from master.fakes import eventually


@pytest.fixture
def read(world):
    def read() -> dict[str, int]:
        return {one["kind"]: one["bytes"] for one in world.client.get("/api/v1/master/usage")["usage"]}

    return read


def test_bytes_are_those_of_the_files(world, read, monkeypatch):
    monkeypatch.setattr(usage, "_PERIOD_S", 0.0)
    home = world.home
    for place in (home.logs / "1.a.1", home.environments / "b" / "lib", home.runs / "c", home.root / "work"):
        place.mkdir(parents=True)
        (place / "file").write_bytes(b"x" * 1000)
    (home.logs / "link").symlink_to(home.database)
    home.master_log.write_bytes(b"y" * 10)
    home.master_log.with_name("master.log.1").write_bytes(b"y" * 20)
    found = read()
    assert found["files of tasks"] == 2000 + (home.logs / "link").lstat().st_size
    assert found["environments"] == found["runs without a master"] == 1000
    assert found["log of the master"] == 30
    assert found["media"] == found["checkpoints"] == 0
    occupied = found["database, with the logs of trials"]
    if not world.master.store.database.is_shared:
        files = [file for file in home.root.glob("master.db*") if not file.name.endswith("-shm")]
        assert occupied == sum(file.stat().st_size for file in files)
    assert occupied > 100_000


def test_deleted_checkpoints_do_not_count(world, read, monkeypatch):
    monkeypatch.setattr(usage, "_PERIOD_S", 0.0)
    _, trial, allocation_id = world.launch()
    with world.master.store.writing() as tx:
        for number, state in enumerate(("COMPLETED", "DELETED", "PARTIALLY_DELETED")):
            tx.add(
                CheckpointRow(
                    uuid=f"{number}" * 8,
                    trial_id=trial["id"],
                    task_id=trial["taskId"],
                    allocation_id=allocation_id,
                    state=state,
                    steps_completed=1,
                    size=10 ** (number + 3),
                    resources={},
                    meta={},
                    report_time=now(),
                )
            )
    assert read()["checkpoints"] == 101_000


def test_many_files_are_counted_once_a_minute(world, read):
    before = read()
    (world.home.runs / "one").mkdir(parents=True)
    (world.home.runs / "one" / "file").write_bytes(b"x")
    assert read() == before


def test_files_of_a_task_are_removed_an_hour_after_its_end(world, monkeypatch):
    ids = []
    for _ in range(2):
        _, trial, allocation_id = world.launch()
        world.pool.say(allocation_id, "a line\n")
        world.pool.finish(allocation_id)
        eventually(lambda trial=trial: world.client.trial(trial["id"])["endTime"])
        ids.append(allocation_id)
    _, _, running = world.launch()
    # Set back: what ended long ago, and what was never started here.
    with world.master.store.writing() as tx:
        tx.get(AllocationRow, ids[0]).end_time = now() - timedelta(hours=2)
    monkeypatch.setattr(world.pool, "kept", lambda: [*ids, running, "not.ours.1"])
    world.master.garbage_collector._swept_at = None
    world.master.garbage_collector.tidy()
    assert world.pool.removed == [ids[0]]
    world.master.garbage_collector.tidy()
    assert world.pool.removed == [ids[0]]
