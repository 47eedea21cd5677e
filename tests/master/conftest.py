"""Masters to test with: one in this process on a pool without processes, and real ones."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_masters
import httpx
import pytest
from database.server import Given
from fastapi.testclient import TestClient

from det_keras.home import Home
from det_keras.launch.network import free_port
from det_keras.master import process
from det_keras.master.accounts.auth import Accounts
from det_keras.master.app import create_app
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import EmbeddedMaster, open_store
from det_keras.master.tasks.scheduling import Policy
from master.fakes import Client, Clock, FakePool, eventually


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
def clock() -> Clock:
    return Clock()


@pytest.fixture
def empty_home(own_home: Path) -> Home:
    return Home(own_home).create()


@pytest.fixture
def home(empty_home, give_database) -> Iterator[Home]:
    """A data root with an empty database of the kind that the tests are run with."""
    given = give_database(empty_home)
    yield empty_home
    given.drop()


@pytest.fixture(scope="session")
def first_start(tmp_path_factory, give_database) -> tuple[Home, Given]:
    """Return a data root on which a master was started once: migrating and hashing take a while."""
    home = Home(tmp_path_factory.mktemp("first")).create()
    given = give_database(home)
    store = open_store(home, Notifier(), {})
    Accounts(store, home).open()
    store.close()
    return home, given


@pytest.fixture(scope="session")
def use_home(first_start, give_database):
    """Return a function that makes an empty data root one that saw its first start, and returns its database."""
    first, template = first_start

    def use(home: Home) -> Given:
        for path in first.root.iterdir():
            shutil.copy(path, home.root)
        given: Given = give_database(home, template)
        return given

    return use


@pytest.fixture
def used_home(empty_home, use_home) -> Iterator[Home]:
    """A data root of the test's own that saw its first start."""
    given = use_home(empty_home)
    yield empty_home
    given.drop()


@pytest.fixture
def make_world(used_home):
    """Start masters on the same data root, one after another."""
    home = used_home
    running: list[Any] = []

    def make(
        pool: FakePool | None = None,
        url: str = "http://127.0.0.1:8080",
        policy: Policy | None = None,
        verify_resume: str = "never",
        *,
        shared_links: bool = False,
        log_retention_days: int | None = None,
    ) -> World:
        notifier = Notifier()
        pool = pool or FakePool()
        store = open_store(home, notifier, {})
        master = EmbeddedMaster(
            home,
            store,
            notifier,
            url=url,
            slots=[],
            environment={},
            pool=pool,
            policy=policy,
            verify_resume=verify_resume,
            shared_links=shared_links,
            log_retention_days=log_retention_days,
        )
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
    """A master in a process of its own, which is forked (`forked_masters`)."""

    def __init__(self, home: Home, **options: Any) -> None:
        self.home = home
        # Not the usual port: while this master is down, that of a test beside this one may take it.
        self.start(**(options or {"port": free_port("127.0.0.1")}))

    def start(self, **options: Any) -> None:
        self.running = forked_masters.start(self.home, slots=2, **options)
        self.http = httpx.Client(base_url=self.running.url, timeout=30.0, trust_env=False)
        self.client = Client(self.http, self.home.token_file.read_text())

    @property
    def is_on_ray(self) -> bool:
        return bool(os.environ.get("DET_KERAS_RAY"))

    @property
    def own_variables(self) -> str:
        """What configs add so that a trial finds this root, on whatever node it is."""
        return f"environment: {{environment_variables: ['TEST_ROOT={self.home.root}']}}\n"

    def directory_of(self, allocation_id: str) -> Path:
        """Return the directory of an attempt, on whatever node it is."""
        if self.is_on_ray:
            folder = Path(tempfile.gettempdir()) / f"det_keras-{os.getuid()}"
            found = list(folder.glob(f"*/*/logs/{allocation_id}"))
            return found[0] if found else folder / "nowhere"
        return self.home.logs / allocation_id

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
def shared(tmp_path_factory, use_home) -> Iterator[RealMaster]:
    """A master that the tests of a file share; none of them ends it."""
    home = Home(tmp_path_factory.mktemp("shared")).create()
    use_home(home)
    master = RealMaster(home)
    yield master
    master.close()
