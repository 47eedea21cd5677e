"""A damaged data root: a start refuses it in one sentence, and `det master check` finds what is damaged or missing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import uuid
from pathlib import Path

import psycopg
import pytest
from cli.conftest import Det
from master.conftest import RealMaster
from master.fakes import eventually, file_entry

from database.server import assign
from det_keras import storage
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.master import integrity, process
from det_keras.master.archive import back_up
from det_keras.master.database import damage
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import open_store

pytestmark = pytest.mark.process

PAGE_BYTES = 4096


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Home:
    """A data root with an experiment, its code and a checkpoint, whose master has ended."""
    home = Home(tmp_path_factory.mktemp("served") / "root").create()
    assign(home, "sqlite")
    master = RealMaster(home)
    experiment_id = master.client.create(modelDefinition=[file_entry("train.py", b"print()")], activate=False)
    trial = master.client.trials(experiment_id)[0]
    name = str(uuid.UUID(int=7))
    section = {"type": "directory", "container_path": str(home.checkpoints)}
    place = storage.from_config(section)
    with place.store_path(name) as directory:
        (directory / "weights").write_bytes(b"abc")
    run = {"runId": trial["id"], "checkpointStorage": section}
    storage_id = master.client.post("/api/v1/runs/start", run)["storageId"]
    body = {
        "uuid": name,
        "storageId": storage_id,
        "taskId": trial["taskId"],
        "metadata": {"steps_completed": 1},
    }
    master.client.post("/api/v1/checkpoints", {**body, "resources": place.list_files(name)})
    master.close()
    return home


@pytest.fixture
def home(served, tmp_path) -> Home:
    # At the place that the database knows.
    kept = tmp_path / "kept"
    shutil.copytree(served.root, kept)
    yield served
    process.stop(served)
    shutil.rmtree(served.root)
    kept.rename(served.root)


def overwrite_a_page(path: Path) -> None:
    """Overwrite a page with rows, as a disk may do."""
    with sqlite3.connect(path) as connection:
        (number,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trials'").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((number - 1) * PAGE_BYTES)
        file.write(os.urandom(PAGE_BYTES))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite_the_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"garbage garbage garbage")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("act", "is_after_crash", "reason"),
    [
        (empty, False, "it is empty"),
        (overwrite_the_header, False, "does not begin as a database"),
        (cut, True, "malformed|[Pp]age"),
        (overwrite_a_page, True, "malformed|[Pp]age"),
    ],
    ids=["empty", "header", "cut", "page"],
)
def test_start_refuses_a_damaged_database_and_names_the_backup(home, act, is_after_crash, reason, tmp_path):
    back_up(home, "sqlite", tmp_path / "backup.tar.gz")
    act(home.database)
    with pytest.raises(DetError, match=reason) as refused:
        open_store(home, Notifier(), {}, is_after_crash=is_after_crash)
    told = str(refused.value)
    assert str(home.database) in told
    assert f"det master restore {tmp_path / 'backup.tar.gz'}" in told
    assert "\n" not in told


def test_start_after_a_kill_checks_all_pages_and_is_refused_in_one_line(home):
    running = process.start(home, slots=0)
    os.kill(running.pid, signal.SIGKILL)
    eventually(lambda: process.find(home) is None)
    with sqlite3.connect(home.database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    overwrite_a_page(home.database)
    with pytest.raises(DetError, match=r"is damaged .*restore the last backup") as refused:
        process.start(home, slots=0)
    assert "\n" not in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_check_at_a_start_takes_no_longer_than_its_limit(home, monkeypatch, caplog):
    monkeypatch.setattr(damage, "_MOST_S", 0.0)
    monkeypatch.setattr(damage, "_STEPS_BETWEEN_LOOKS", 1)
    open_store(home, Notifier(), {}, is_after_crash=True).close()
    assert "too large to be checked at a start" in caplog.text


def test_damaged_database_is_not_backed_up(home, tmp_path):
    overwrite_a_page(home.database)
    with pytest.raises(DetError, match=r"is damaged, and was not backed up"):
        back_up(home, "sqlite", tmp_path / "backup.tar.gz")
    assert not (tmp_path / "backup.tar.gz").exists()


def test_check_finds_no_damage_in_an_intact_root(home, tmp_path):
    printed = Det(home.root, tmp_path).out("master", "check")
    assert printed.startswith(f"No damage was found in {home.root}: ")
    assert "the code of experiments (1) and the files of 1 checkpoints are complete." in printed


def remove_code(home: Home) -> None:
    next((home.root / "contexts").iterdir()).unlink()


def change_code(home: Home) -> None:
    with next((home.root / "contexts").iterdir()).open("ab") as file:
        file.write(b"x")


def remove_a_file(home: Home) -> None:
    (home.checkpoints / str(uuid.UUID(int=7)) / "weights").unlink()


def remove_a_checkpoint(home: Home) -> None:
    shutil.rmtree(home.checkpoints / str(uuid.UUID(int=7)))


def remove_a_row(home: Home) -> None:
    with sqlite3.connect(home.database) as connection:
        connection.execute("DELETE FROM storages")
    connection.close()


def break_json(home: Home) -> None:
    with sqlite3.connect(home.database) as connection:
        connection.execute("UPDATE experiments SET config = '{broken'")
    connection.close()


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda home: overwrite_a_page(home.database), r"master\.db"),
        (remove_code, r"The code in .* which a row of \w+ uses, cannot be read: No such file"),
        (change_code, r"The code in .* was changed, or is damaged"),
        (remove_a_file, r"Checkpoint 0{8}-.*7 lacks 1 files in .*: weights"),
        (remove_a_checkpoint, r"Checkpoint 0{8}-.*7 lacks \d files in "),
        (remove_a_row, r"Row \d+ of the table checkpoints refers to a row of storages that does not exist"),
        (break_json, r"A row of the table experiments cannot be read"),
    ],
    ids=["page", "no code", "changed code", "no file", "no checkpoint", "no row", "value"],
)
def test_check_tells_what_is_damaged_or_missing(home, act, told):
    act(home)
    problems = integrity.check(home, "sqlite").problems
    assert any(re.search(told, problem) for problem in problems), problems


def test_check_of_a_damaged_root_ends_with_code_1(home, tmp_path):
    remove_a_file(home)
    done = Det(home.root, tmp_path)("master", "check")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == f"1 problems were found in {home.root}."


def test_postgresql_is_read_whole(own_home, url):
    home = Home(own_home / "root").create()
    assign(home, url)
    master = RealMaster(home)
    try:
        master.client.create(modelDefinition=[file_entry("train.py")], activate=False)
        found = integrity.check(home, url)
        assert (found.problems, found.code_archives) == ([], 1)
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE experiments SET config = '{broken'")
        assert "A row of the table experiments cannot be read" in integrity.check(home, url).problems[0]
    finally:
        master.close()
