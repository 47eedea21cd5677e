"""A full disk: calls are refused with a status at which clients repeat them, and nothing is stored by halves."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from sqlalchemy import event

from master.fakes import SINGLE, file_entry

_NO_LIMIT = 1_000_000_000


@pytest.fixture
def fill_database(world, monkeypatch):
    """Return a function that lets the database grow no further, and one that lets it grow again."""
    engine = world.master.store.engine
    if engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL reports by itself that its disk is full.")
    pages = [_NO_LIMIT]

    def limit(connection) -> None:
        connection.connection.driver_connection.execute(f"PRAGMA max_page_count={pages[0]}")

    event.listen(engine, "begin", limit)
    yield lambda is_full: pages.__setitem__(0, 1 if is_full else _NO_LIMIT)
    event.remove(engine, "begin", limit)


def test_calls_on_a_full_disk_are_refused_as_unavailable_and_work_again_later(world, fill_database):
    _, trial, _ = world.launch()
    long = "x" * 200_000
    fill_database(True)
    refused = world.client.report(trial["id"], "training", 1, {"loss": long}, status=503)
    assert "Free some space" in refused["error"]["error"]
    world.client.report(trial["id"], "validation", 1, {"loss": long}, status=503)
    world.client.call("PATCH", "/api/v1/experiments/1", {"id": 1, "notes": long}, status=503)
    fill_database(False)
    world.client.report(trial["id"], "training", 1, {"loss": long})
    world.client.report(trial["id"], "validation", 1, {"loss": long})
    assert world.client.experiment(1)["notes"] == ""


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 503), (errno.EDQUOT, 503), (errno.EACCES, 500)]
)
def test_file_for_which_there_is_no_space_refuses_the_call(world, monkeypatch, number, status):
    def replace(self, target):
        raise OSError(number, "no")

    files = [file_entry("train.py", b"pass")]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        body = {"config": SINGLE, "modelDefinition": files}
        world.client.post("/api/v1/experiments", body, status=status)
    assert world.client.get("/api/v1/experiments")["experiments"] == []
    world.client.create(modelDefinition=files)
