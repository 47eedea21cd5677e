"""One contract for every resource pool: this machine, Ray, and the pool that tests use in their place."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import sys
import tempfile
import threading
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from det_keras.home import Home
from det_keras.master.lifecycle import Ending
from det_keras.master.resources import Launch, LocalPool, LogEntry, RayPool, ResourcePool, Share, State
from det_keras.master.resources.ray import kill_everything
from det_keras.master.resources.slots import find_slots
from master.fakes import FakePool, eventually

NAME = "1.task.1"


@dataclass
class Place:
    """A pool, and how tasks are made to end in it.

    Attributes:
        pool: under test.
        finish: lets the task of that allocation end with a code.
        variables: what every task of the pool needs.
        read: returns the log of an allocation from an offset; the pool's own by default.
    """

    pool: ResourcePool
    finish: Any
    variables: Mapping[str, str] = field(default_factory=dict)
    read: Any = None

    def __post_init__(self) -> None:
        self.read = self.read or self.pool.read_log

    def launch(self, name: str = NAME) -> None:
        """Start a task that prints two lines and waits to be told its exit code."""
        code = (
            "import pathlib, sys, time\n"
            "print('first', flush=True)\nprint('second', flush=True)\n"
            "path = pathlib.Path('code')\n"
            "while not path.exists() or not path.read_text(): time.sleep(0.01)\n"
            "sys.exit(int(path.read_text()))\n"
        )
        variables = {"DET_ALLOCATION_ID": name, **self.variables}
        (node, *_) = (node for node in self.pool.nodes if node.slots)
        self.pool.launch(
            Launch(name, [sys.executable, "-c", code], variables, shares=[Share(node.id, (0,), node.address)])
        )

    def end_of(self, name: str = NAME) -> Any:
        """Wait for the end of a task and return it; the master calls `release` when it has recorded it."""
        return eventually(lambda: (seen := self.pool.look(name)).state is State.ENDED and seen.exit)


class Receiver(http.server.ThreadingHTTPServer):
    """What the master does with the log of a task on another machine."""

    def __init__(self) -> None:
        self.logs: dict[str, list[LogEntry]] = defaultdict(list)
        self.positions: dict[str, int] = defaultdict(int)
        super().__init__(("127.0.0.1", 0), ReceiverCall)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def read(self, name: str, offset: int) -> tuple[list[LogEntry], int]:
        found = self.logs[name][offset:]
        return found, offset + len(found)


class ReceiverCall(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.split("/")[-2]
        if body["offset"] == self.server.positions[name]:
            self.server.positions[name] = body["nextOffset"]
            for line in body["lines"]:
                time = datetime.fromtimestamp(line["time"], timezone.utc)
                self.server.logs[name].append(LogEntry(time, line["text"], line["stdtype"]))
        answer = json.dumps({"offset": self.server.positions[name]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def ray_place(machines, home):
    with Receiver() as receiver:
        cluster_id = uuid.uuid4().hex
        pool = RayPool(machines.address, cluster_id, home, dict(os.environ), is_only_local=True)
        pool.start({})

        def finish(name: str, code: int) -> None:
            folder = Path(tempfile.gettempdir()) / f"det_keras-{os.getuid()}" / cluster_id
            (directory,) = eventually(lambda: list(folder.glob(f"*/work/{name}")))
            (directory / "code").write_text(str(code))

        port = receiver.server_address[1]
        variables = {"DET_MASTER": f"http://127.0.0.1:{port}", "DET_SESSION_TOKEN": "t", "DET_TASK_ID": "1"}
        yield Place(pool, finish, variables, receiver.read)
        pool.stop()
        receiver.shutdown()
        kill_everything(home)


@pytest.fixture(
    params=[
        pytest.param("local", marks=pytest.mark.process),
        pytest.param("ray", marks=pytest.mark.process),
        "fake",
    ]
)
def place(request, tmp_path):
    if request.param == "ray":
        with ray_place(request.getfixturevalue("machines"), Home(tmp_path / "home").create()) as found:
            yield found
        return
    if request.param == "fake":
        fake = FakePool()
        place = Place(fake, fake.finish)
        original = fake.launch

        def launch(what: Launch) -> None:
            original(what)
            fake.say(what.allocation_id, "first")
            fake.say(what.allocation_id, "second")

        fake.launch = launch
        yield place
        return
    pool = LocalPool(Home(tmp_path / "home").create(), find_slots(2), dict(os.environ))

    def finish(name: str, code: int) -> None:
        directory = pool.working_directory(name)
        eventually(directory.exists)
        (directory / "code").write_text(str(code))

    yield Place(pool, finish)
    for name in (NAME, "1.task.2"):
        pool.kill(name, force=True)


def test_a_task_runs_until_it_ends_with_its_code(place):
    place.launch()
    eventually(lambda: place.pool.look(NAME).state is State.RUNNING)
    place.finish(NAME, 3)
    end = place.end_of()
    assert (end.ending, end.code, end.is_failure) == (Ending.EXITED, 3, True)
    # Once it has ended it stays so.
    assert place.pool.look(NAME).state is State.ENDED


def test_an_allocation_that_was_never_launched_is_lost(place):
    assert place.end_of("1.never.1").ending is Ending.LOST


@pytest.mark.parametrize("force", [False, True])
def test_a_killed_task_ends(place, force):
    place.launch()
    eventually(lambda: place.read(NAME, 0)[0])
    place.pool.kill(NAME, force=force)
    end = place.end_of()
    assert end.code != 0


def test_killing_what_does_not_run_does_nothing(place):
    place.launch()
    place.finish(NAME, 0)
    assert place.end_of().code == 0
    place.pool.kill(NAME, force=False)
    assert place.pool.look(NAME).exit.code == 0


def test_the_log_is_read_on_from_where_it_was(place):
    place.launch()
    entries, offset = [], 0

    def read() -> bool:
        nonlocal offset
        found, offset = place.read(NAME, offset)
        entries.extend(found)
        return len(entries) == 2

    eventually(read)
    assert [entry.text.strip() for entry in entries] == ["first", "second"]
    assert place.read(NAME, offset) == ([], offset)
    assert place.read("1.never.1", 0) == ([], 0)


def test_tasks_do_not_know_of_each_other(place):
    for name in (NAME, "1.task.2"):
        place.launch(name)
    place.finish(NAME, 0)
    assert place.end_of().code == 0
    eventually(lambda: place.pool.look("1.task.2").state is State.RUNNING)


def test_a_removed_allocation_leaves_no_log(place):
    place.launch()
    place.finish(NAME, 0)
    place.end_of()
    place.pool.remove(NAME)
    assert place.pool.read_log(NAME, 0) == ([], 0)


def test_slots_are_numbered_and_share_the_machine(place):
    numbers = [[slot.id for slot in node.slots] for node in place.pool.nodes if node.slots]
    assert all(found == [0, 1] for found in numbers)
    assert place.pool.slot_count == 2 * len(numbers)
