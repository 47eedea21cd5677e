"""One contract for every resource pool: processes of this machine, and the pool that tests use in their place."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from det_keras.home import Home
from det_keras.master.lifecycle import Ending
from det_keras.master.resources import Launch, LocalPool, ResourcePool, State
from det_keras.master.resources.slots import find_slots
from master.fakes import FakePool, eventually

NAME = "1.task.1"


@dataclass
class Place:
    """A pool, and how tasks are made to end in it.

    Attributes:
        pool: under test.
        finish: lets the task of that allocation end with a code.
    """

    pool: ResourcePool
    finish: Any

    def launch(self, name: str = NAME) -> None:
        """Start a task that prints two lines and waits to be told its exit code."""
        code = (
            "import pathlib, sys, time\n"
            "print('first', flush=True)\nprint('second', flush=True)\n"
            "path = pathlib.Path('code')\n"
            "while not path.exists() or not path.read_text(): time.sleep(0.01)\n"
            "sys.exit(int(path.read_text()))\n"
        )
        self.pool.launch(Launch(name, [sys.executable, "-c", code], {"DET_ALLOCATION_ID": name}))

    def end_of(self, name: str = NAME) -> Any:
        """Wait for the end of a task and return it."""
        return eventually(lambda: (seen := self.pool.look(name)).state is State.ENDED and seen.exit)


@pytest.fixture(params=[pytest.param("local", marks=pytest.mark.process), "fake"])
def place(request, tmp_path):
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
    assert place.pool.look(NAME).state is State.RUNNING
    place.finish(NAME, 3)
    end = place.end_of()
    assert (end.ending, end.code, end.is_failure) == (Ending.EXITED, 3, True)
    # Once it has ended it stays so.
    assert place.pool.look(NAME).state is State.ENDED


def test_an_allocation_that_was_never_launched_is_lost(place):
    seen = place.pool.look("1.never.1")
    assert (seen.state, seen.exit.ending) == (State.ENDED, Ending.LOST)


@pytest.mark.parametrize("force", [False, True])
def test_a_killed_task_ends(place, force):
    place.launch()
    eventually(lambda: place.pool.read_log(NAME, 0)[0])
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
        found, offset = place.pool.read_log(NAME, offset)
        entries.extend(found)
        return len(entries) == 2

    eventually(read)
    assert [entry.text.strip() for entry in entries] == ["first", "second"]
    assert place.pool.read_log(NAME, offset) == ([], offset)
    assert place.pool.read_log("1.never.1", 0) == ([], 0)


def test_tasks_do_not_know_of_each_other(place):
    for name in (NAME, "1.task.2"):
        place.launch(name)
    assert place.pool.working_directory(NAME) != place.pool.working_directory("1.task.2")
    place.finish(NAME, 0)
    assert place.end_of().code == 0
    assert place.pool.look("1.task.2").state is State.RUNNING


def test_a_removed_allocation_leaves_no_log(place):
    place.launch()
    place.finish(NAME, 0)
    place.end_of()
    place.pool.remove(NAME)
    assert place.pool.read_log(NAME, 0) == ([], 0)


def test_slots_are_numbered_and_share_the_machine(place):
    assert [slot.id for slot in place.pool.slots] == [0, 1]
    assert place.pool.threads_per_slot >= 1
