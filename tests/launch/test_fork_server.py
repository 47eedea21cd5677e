"""The fork server of supervisors, and what is left when a process is killed at any moment of a start."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from det_keras.launch.fork_server import ForkServer
from det_keras.launch.importable import importable

from .waiting import eventually, is_dead

pytestmark = pytest.mark.process

VARIABLES = {**importable(os.environ), "OF_THE_MASTER": "1"}


class Allocation:
    """The directory of a supervisor whose task writes its pid into `runs` and ends when `end` exists."""

    def __init__(self, root: Path, name: str) -> None:
        self.directory = root / name
        self.directory.mkdir()
        self.spec = self.directory / "spec.json"
        self.lock = self.directory / "supervisor.lock"
        self.exit = self.directory / "exit.json"
        self._runs, self.end = root / f"runs-{name}", root / f"end-{name}"
        code = f'echo $$ >> {self._runs}; while [ ! -e "{self.end}" ]; do sleep 0.02; done'
        content = {
            "argv": ["sh", "-c", code],
            "environment": {"PATH": os.environ["PATH"]},
            "directory": str(root / f"work-{name}"),
            "context": None,
        }
        self.spec.write_text(json.dumps(content))

    def start(self, server: ForkServer) -> None:
        with (self.directory / "supervisor.log").open("wb") as output, Path(os.devnull).open("rb") as stdin:
            server.start_supervisor(self.spec, stdin=stdin.fileno(), output=output.fileno())

    def start_in_thread(self, server: ForkServer) -> threading.Thread:
        thread = threading.Thread(target=self.start, args=(server,))
        thread.start()
        return thread

    @property
    def supervisor(self) -> psutil.Process:
        return psutil.Process(int(self.lock.read_text()))

    @property
    def runs(self) -> list[int]:
        return [int(line) for line in self._runs.read_text().split()] if self._runs.exists() else []

    def finish(self) -> None:
        """Let the task end, and check that it ran once."""
        self.end.touch()
        eventually(self.exit.exists)
        assert json.loads(self.exit.read_text())["exit_code"] == 0
        assert len(self.runs) == 1


@pytest.fixture
def server():
    server = ForkServer(VARIABLES)
    yield server
    server.close()


@pytest.fixture
def make(tmp_path):
    made = []

    def make_allocation(name: str) -> Allocation:
        made.append(Allocation(tmp_path, name))
        return made[-1]

    yield make_allocation
    for allocation in made:
        allocation.end.touch()


@pytest.fixture
def allocation(make):
    return make("1")


def forks_of(server: ForkServer) -> list[psutil.Process]:
    return psutil.Process(server.pid).children()


def test_supervisor_holds_its_lock_once_it_is_started(server, allocation):
    allocation.start(server)
    with allocation.lock.open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert allocation.supervisor.pid in [fork.pid for fork in forks_of(server)]
    allocation.finish()


def test_supervisor_is_like_a_program_of_its_own(server, allocation):
    os.set_inheritable(descriptor := os.open("/dev/zero", os.O_RDONLY), True)
    allocation.start(server)
    os.close(descriptor)
    supervisor = allocation.supervisor
    eventually(lambda: allocation.runs)
    assert os.getsid(supervisor.pid) == supervisor.pid
    assert supervisor.cwd() == str(allocation.directory)
    assert supervisor.environ()["OF_THE_MASTER"] == "1"
    log, lock, output = (
        str(allocation.directory / name) for name in ("log.jsonl", "supervisor.lock", "supervisor.log")
    )

    def opened() -> dict[int, str]:
        return {int(one.name): str(one.readlink()) for one in Path(f"/proc/{supervisor.pid}/fd").iterdir()}

    # The pipes to the reaper, from the task and of signals, and the selector that waits for them, come last.
    others = eventually(lambda: "anon_inode:[eventpoll]" in (found := opened()).values() and found)
    assert [others.pop(number) for number in range(3)] == ["/dev/null", output, output]
    names = sorted(name for name in others.values() if not name.startswith("pipe:"))
    assert names == sorted([lock, log, "anon_inode:[eventpoll]"])
    allocation.finish()


def test_lock_of_a_killed_supervisor_is_not_held_by_others(server, allocation, make):
    allocation.start(server)
    other = make("2")
    other.start(server)
    allocation.supervisor.kill()
    with allocation.lock.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    other.finish()


def test_second_supervisor_needs_no_second_server(server, allocation, make):
    allocation.start(server)
    pid = server.pid
    other = make("2")
    other.start(server)
    assert server.pid == pid
    other.finish()
    allocation.finish()


def test_end_of_a_supervisor_is_told_and_leaves_no_zombie(allocation):
    told = threading.Event()
    server = ForkServer(VARIABLES, told.set)
    try:
        allocation.start(server)
        assert not told.is_set()
        allocation.finish()
        assert told.wait(10)
        assert not forks_of(server)
    finally:
        server.close()


def test_supervisor_without_a_directory_is_an_error_that_says_where(server, allocation, tmp_path):
    allocation.directory.rename(tmp_path / "moved")
    with Path(os.devnull).open("r+b") as null, pytest.raises(OSError, match=str(allocation.spec)):
        server.start_supervisor(allocation.spec, stdin=null.fileno(), output=null.fileno())


@pytest.mark.kill
def test_killed_server_is_replaced_and_its_supervisors_continue(server, allocation, make):
    allocation.start(server)
    psutil.Process(server.pid).kill()
    other = make("2")
    other.start(server)
    other.finish()
    allocation.finish()


@pytest.mark.kill
def test_request_that_a_killed_server_did_not_read_is_repeated(server, allocation, make):
    make("2").start(server)
    killed = psutil.Process(server.pid)
    killed.suspend()
    eventually(lambda: killed.status() == psutil.STATUS_STOPPED)
    starting = allocation.start_in_thread(server)
    killed.kill()
    starting.join(10)
    allocation.finish()


@pytest.mark.kill
def test_server_that_is_killed_after_its_fork_starts_no_second_supervisor(server, allocation, make):
    make("2").start(server)
    (before,) = forks_of(server)
    with allocation.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        starting = allocation.start_in_thread(server)
        (fork,) = eventually(lambda: [fork for fork in forks_of(server) if fork != before])
        psutil.Process(pid := server.pid).kill()
        # It waits for the fork, which still may take the lock.
        starting.join(0.5)
        assert starting.is_alive()
        assert server.pid == pid
    starting.join(10)
    assert allocation.supervisor == fork
    allocation.finish()


@pytest.mark.kill
def test_supervisor_that_is_killed_before_it_holds_its_lock_is_started_again(server, allocation, make):
    make("2").start(server)
    (before,) = forks_of(server)
    with allocation.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        starting = allocation.start_in_thread(server)
        (fork,) = eventually(lambda: [fork for fork in forks_of(server) if fork != before])
        fork.kill()
        eventually(lambda: is_dead(fork.pid))
    starting.join(10)
    allocation.finish()


@pytest.mark.kill
@pytest.mark.parametrize("moment", ["while the task runs", "before the supervisor holds its lock"])
def test_server_ends_with_the_master_and_its_supervisor_does_not(allocation, moment):
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom det_keras.launch.fork_server import ForkServer\n"
        "server = ForkServer(dict(os.environ))\n"
        "server._start()\nprint(server.pid, flush=True)\n"
        "null = os.open(os.devnull, os.O_RDWR)\n"
        "server.start_supervisor(Path(sys.argv[1]), stdin=null, output=null)\n"
        "print('started', flush=True)\ntime.sleep(60)\n"
    )
    lock = allocation.lock.open("a")
    if moment != "while the task runs":
        fcntl.flock(lock, fcntl.LOCK_EX)
    command = [sys.executable, "-c", code, str(allocation.spec)]
    master = subprocess.Popen(command, env=VARIABLES, stdout=subprocess.PIPE, text=True)
    with master:
        assert master.stdout is not None
        server = psutil.Process(int(master.stdout.readline()))
        if moment == "while the task runs":
            assert master.stdout.readline() == "started\n"
        else:
            eventually(server.children)
        master.send_signal(signal.SIGKILL)
    eventually(lambda: is_dead(server.pid))
    lock.close()
    allocation.finish()
