"""Masters to test with: one in this process on a pool without processes, and real ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from det_keras.home import Home
from det_keras.master import process
from det_keras.master.accounts.auth import Accounts
from det_keras.master.app import create_app
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import EmbeddedMaster, open_store
from master.fakes import Client, FakePool, eventually


@dataclass
class World:
    """A master in this process."""

    home: Home
    master: EmbeddedMaster
    pool: FakePool
    http: TestClient
    client: Client

    def wait_for_launch(self, trial: Any, run_id: int = 1) -> str:
        """Return the id of a trial's allocation once it was launched."""
        allocation_id = f"{trial['taskId']}.{run_id}"
        eventually(lambda: allocation_id in self.pool.launched)
        eventually(lambda: self.client.get(f"/api/v1/allocations/{allocation_id}"))
        return allocation_id

    def launch(self, config: str | None = None, **fields: Any) -> tuple[int, Any, str]:
        """Make an experiment; return its number, its first trial and the launched allocation."""
        experiment_id = self.client.create(**({} if config is None else {"config": config}), **fields)
        trial = self.client.trials(experiment_id)[0]
        return experiment_id, trial, self.wait_for_launch(trial)


@pytest.fixture
def home(own_home: Path) -> Home:
    return Home(own_home).create()


@pytest.fixture(scope="session")
def first_start(tmp_path_factory) -> Home:
    """Return a data root on which a master was started once: migrating and hashing take a while."""
    home = Home(tmp_path_factory.mktemp("first")).create()
    store = open_store(home, Notifier(), {})
    Accounts(store, home).open()
    store.close()
    return home


@pytest.fixture
def used_home(home, first_start) -> Home:
    """Return a data root of the test's own that saw its first start."""
    for path in first_start.root.iterdir():
        shutil.copy(path, home.root)
    return home


@pytest.fixture
def make_world(used_home):
    """Start masters on the same data root, one after another."""
    home = used_home
    running: list[Any] = []

    def make(pool: FakePool | None = None, url: str = "http://127.0.0.1:8080") -> World:
        notifier = Notifier()
        pool = pool or FakePool()
        store = open_store(home, notifier, {})
        master = EmbeddedMaster(home, store, notifier, url=url, slots=[], environment={}, pool=pool)
        http = TestClient(create_app(master), raise_server_exceptions=False)
        http.__enter__()
        running.append(http)
        return World(home, master, pool, http, Client(http, home.token_file.read_text()))

    def stop() -> None:
        running.pop().__exit__(None, None, None)

    make.stop = stop
    yield make
    while running:
        stop()


@pytest.fixture
def world(make_world) -> World:
    return make_world()


@pytest.fixture
def client(world) -> Client:
    return world.client


class RealMaster:
    """A master in a process of its own."""

    def __init__(self, home: Home, **options: Any) -> None:
        self.home = home
        self.start(**options)

    def start(self, **options: Any) -> None:
        self.running = process.start(self.home, slots=2, **options)
        self.http = httpx.Client(base_url=self.running.url, timeout=30.0, trust_env=False)
        self.client = Client(self.http, self.home.token_file.read_text())

    def close(self) -> None:
        self.http.close()
        process.stop(self.home, kill_tasks=True)


@pytest.fixture
def real(used_home) -> Iterator[RealMaster]:
    """A master to kill."""
    master = RealMaster(used_home)
    yield master
    master.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[RealMaster]:
    """A master that the tests of a file share; none of them ends it."""
    master = RealMaster(Home(tmp_path_factory.mktemp("shared")).create())
    yield master
    master.close()
