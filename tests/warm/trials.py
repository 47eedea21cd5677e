"""Trials and jobs of an embedded master as forks of their supervisors, whose fork server has imported TensorFlow.

The supervisors are unchanged otherwise. A task is a fork if it is a program of this interpreter, started directly or by
a shell that does nothing else, and a new process in every other case.

The fork server of a master is a fork itself, of the server that the process of the tests has (`server.py`), so all of
them have the same import. It is asked for at a door: a socket whose path the master's environment names. Behind it is a
process that does nothing but fork. What the master has started asks there, and waits for the end of the fork. If nobody
opens, it is a usual fork server, and the tasks are new processes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import shutil
import signal
import socket
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from warm import ranks
from warm.program import Ground, become_new, run_program
from warm.server import server

__all__ = ["SITE", "open_door", "prepare", "variables", "warm_trials"]

#: In the PYTHONPATH of a master: its trials are warm.
SITE = str(Path(__file__).parent / "site")
# The variable that names the door.
_DOOR = "DET_KERAS_TEST_WARM_DOOR"
_FORK_SERVER = ("-m", "det_keras.launch.fork_server")


@contextlib.contextmanager
def warm_trials() -> Iterator[None]:
    """Let the masters that are started meanwhile have warm trials."""
    wanted = variables(_door().path)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def variables(door: Path) -> dict[str, str]:
    """Return what the environment of a fork server needs, so that it asks at a door."""
    return {
        "PYTHONPATH": os.pathsep.join([SITE, *filter(None, [os.environ.get("PYTHONPATH")])]),
        _DOOR: str(door),
    }


@contextlib.contextmanager
def open_door(path: Path) -> Iterator[None]:
    """Let fork servers that ask at this path have warm tasks meanwhile."""
    path.symlink_to(_door().path)
    try:
        yield
    finally:
        path.unlink()


def prepare() -> None:
    """Let another process be this fork server, and end with it; return if nobody opens."""
    with contextlib.suppress(KeyError, OSError):
        _be_another(os.environ[_DOOR])


def _fork_tasks(ground: Ground) -> None:
    """Let the supervisors that this process forks fork their tasks."""
    # Not earlier: the process that imports this module is to become one that does not need it.
    from det_keras.launch import supervisor

    start_group = ranks.forking(supervisor.start_group, ground)

    def start(
        argv: Sequence[str], environment: Mapping[str, str], directory: str | None = None, **options: Any
    ) -> Any:
        return start_group(argv, _without_site(environment), directory, **options)

    supervisor.start_group = start


class _Door:
    """A door of this process, and the process behind it, which ends with the server."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="warm-")
        self.path = Path(folder) / "door"
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(self.path))
            door.listen()
            self._fork = server().fork(_be_door, dict(os.environ), outputs=[1, 2, door.fileno()])
        atexit.register(self._remove, folder, os.getpid())

    @staticmethod
    def _remove(folder: str, owner: int) -> None:
        # Not at the end of a fork of this process.
        if os.getpid() == owner:
            shutil.rmtree(folder)


@functools.cache
def _door() -> _Door:
    """Return the door of this process, which is opened when it is first needed."""
    return _Door()


def _be_door(ground: Ground, descriptors: Sequence[int], environment: dict[str, str]) -> NoReturn:
    """Fork a fork server for each connection."""
    become_new(environment, "/", ground, descriptors=descriptors)
    # Nobody waits for the forks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    door = socket.socket(fileno=descriptors[0])
    while True:
        connection, _ = door.accept()
        _, given, _, _ = socket.recv_fds(connection, 1, 3)
        if os.fork() == 0:
            _be_fork_server(connection, given, ground)
        for descriptor in given:
            os.close(descriptor)
        connection.close()


def _be_fork_server(connection: socket.socket, given: Sequence[int], ground: Ground) -> NoReturn:
    """Be a master's fork server to its end, in place of the process at the other end of the connection."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, source in enumerate(given):
            os.dup2(source, number)
        with connection.makefile("rb") as request:
            environment = pickle.load(request)
        # The connection ends with this process, not with the supervisors that outlive it.
        os.register_at_fork(after_in_child=connection.close)
        _fork_tasks(ground)
        run_program(_FORK_SERVER, environment, "/", ground, descriptors=[connection.fileno()])
    except BaseException:
        traceback.print_exc()
    finally:
        # It must never continue as a second door.
        os._exit(1)


def _be_another(door: str) -> NoReturn:
    """Have this process replaced by a fork of the one behind the door, and end when that does.

    Raises:
        OSError: nobody opens.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(door)
        socket.send_fds(connection, [b"."], [0, 1, 2])
        connection.sendall(pickle.dumps(dict(os.environ)))
        connection.shutdown(socket.SHUT_WR)
        # The requests are the other's.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        with contextlib.suppress(OSError):
            connection.recv(1)
    os._exit(0)


def _without_site(environment: Mapping[str, str]) -> dict[str, str]:
    folders = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one not in ("", SITE)]
    found = {**environment, "PYTHONPATH": os.pathsep.join(folders)}
    unwanted = (_DOOR,) if folders else (_DOOR, "PYTHONPATH")
    return {name: value for name, value in found.items() if name not in unwanted}
