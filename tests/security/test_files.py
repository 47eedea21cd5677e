"""What is stored, and who may read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from master.conftest import RealMaster
from master.fakes import SINGLE, Client, file_entry

from det_keras.home import Home

JOB = "name: stored\nentrypoint: sh -c 'umask; sleep 0'\nsearcher: {name: single, metric: loss}\nmax_restarts: 0\n"


def is_open(path: Path, root: Path) -> bool:
    """Return whether another account may read a file, although it may enter the root itself."""
    above = [folder for folder in path.parents if root in folder.parents]
    return bool(path.stat().st_mode & 0o077) and all(folder.stat().st_mode & 0o011 for folder in above)


@pytest.fixture
def used(home: Home):
    """A data root that others may enter, with a master that was started without a umask and has run a trial."""
    home.root.chmod(0o755)
    before = os.umask(0)
    master = RealMaster(home)
    try:
        experiment_id = master.client.create(JOB, modelDefinition=[file_entry("secret.py", b"password = 1")])
        master.client.wait_for_state(experiment_id, "COMPLETED")
        yield home, master, experiment_id
    finally:
        master.close()
        os.umask(before)


def test_other_accounts_read_nothing_in_a_data_root_that_they_may_enter(used):
    home, _, _ = used
    files = [path for path in home.root.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
    names = {path.name for path in files}
    assert {"master.db", "master.log", "master.json", "token", "password", "log.jsonl"} <= names
    assert [path.name for path in files if is_open(path, home.root)] == []


def test_task_has_the_umask_of_the_account(used):
    _, master, experiment_id = used
    (trial,) = master.client.trials(experiment_id)
    printed = [line["message"] for line in master.client.log(trial["id"])]
    assert any("0000" in line.split() for line in printed), printed


def test_database_has_neither_passwords_nor_tokens(world):
    secrets = {
        path.name: path.read_bytes().strip()
        for path in (world.home.token_file, world.home.password_file, world.home.admin_password_file)
    }
    _, _, allocation_id = world.launch(SINGLE)
    variables = world.pool.launched[allocation_id].variables
    secrets["task"] = variables["DET_SESSION_TOKEN"].encode()
    body = {"username": "determined", "password": secrets["password"].decode(), "isHashed": False}
    login = Client(world.http, "").post("/api/v1/auth/login", body)
    secrets["login"] = login["token"].encode()
    stored = b"".join(path.read_bytes() for path in world.home.root.glob("master.db*"))
    assert b"argon2id" in stored or not stored
    assert [name for name, secret in secrets.items() if secret in stored] == []
