"""A full disk: calls are refused with a status at which clients repeat them, and nothing is stored by halves."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from det_keras.home import Home
from det_keras.master.database.engines.sqlite import SqliteDatabase
from det_keras.master.errors import UnavailableError
from det_keras.master.resources.local import LocalPool
from det_keras.master.resources.slots import find_slots
from master.fakes import SINGLE, eventually, file_entry

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


def test_no_task_is_started_on_a_full_disk_until_there_is_space(world, caplog):
    caplog.set_level(logging.WARNING)
    asked = []
    world.pool.obstacle = lambda: asked.append(1) or "The disk is full."
    trial = world.client.trials(world.client.create())[0]
    eventually(lambda: len(asked) > 2)
    assert world.pool.launched == {}
    assert [one.getMessage() for one in caplog.records] == ["No task is started. The disk is full."]
    world.pool.obstacle = lambda: None
    world.wait_for_launch(trial)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), ChildProcessError("The supervisor ended")],
    ids=["no space", "killed supervisor"],
)
def test_trial_that_could_not_start_for_now_is_started_again(world, error):
    launch, errors = world.pool.launch, [error]

    def find_no_space(what) -> None:
        if errors:
            raise errors.pop()
        launch(what)

    world.pool.launch = find_no_space
    trial = world.client.trials(world.client.create(SINGLE + "max_restarts: 0\n"))[0]
    world.pool.finish(world.wait_for_launch(trial, 2))
    world.client.wait_for_state(1, "COMPLETED")


def test_disk_of_this_machine_counts_as_full_before_nothing_fits(tmp_path, monkeypatch):
    home = Home(tmp_path / "home").create()
    pool = LocalPool(home, find_slots(1), dict(os.environ))
    assert pool.obstacle() is None
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(1000))
    assert str(home.root) in pool.obstacle()


def test_master_without_files_asks_to_come_again(world, monkeypatch):
    def open_nothing(_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_bytes", open_nothing)
    answer = world.http.get("/static/style.css")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def test_sqlite_file_that_cannot_be_opened_is_unavailable(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    database = SqliteDatabase(place / "master.db")
    shutil.rmtree(place)
    with pytest.raises(DBAPIError) as caught:
        database.readers.connect()
    assert isinstance(database.refusal(caught.value), UnavailableError)
