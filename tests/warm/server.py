"""The process that has imported TensorFlow and forks others, and the connection with it.

It has a single thread, and runs no operation of TensorFlow, whose threads a fork would not have. A request passes
descriptors: one end of a connection, and the outputs. The fork reads what it shall be from the connection; the server
writes the fork's pid into it and, later, how it ended. The server ends when its standard input, a socket, ends: when
the process of the tests does. It kills the forks that still run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from warm.imports import import_all
from warm.program import Ground, early_values

__all__ = ["Fork", "Server", "main", "server"]

_TESTS = str(Path(__file__).resolve().parents[1])
_START = f"import sys; sys.path[0] = {_TESTS!r}; from warm.server import main; main()"
_MOST_DESCRIPTORS = 8


class Fork:
    """A process that a server forked.

    Attributes:
        pid: its number.
        status: that of `waitpid`; None while it runs.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._lines = connection.makefile("r")
        self.pid = int(self._lines.readline())
        self.status: int | None = None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; return whether it has ended."""
        with self._lock:
            if self.status is None and select.select([self._connection], [], [], timeout_s)[0]:
                line = self._lines.readline()
                self.status = int(line) if line else signal.SIGKILL
                self._lines.close()
                self._connection.close()
            return self.status is not None


class Server:
    """The server of this process; may be used by several threads."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self.early = early_values(os.environ)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START],
                stdin=its.fileno(),
                start_new_session=True,
            )
        atexit.register(self._end, os.getpid())

    def _end(self, owner: int) -> None:
        """End the server and the forks that still run."""
        # Not at the end of a fork of this process.
        if os.getpid() == owner:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._process.wait()

    def fork(self, function: Callable[..., NoReturn], *arguments: Any, outputs: Sequence[int]) -> Fork:
        """Fork a process that calls ``function(ground, descriptors, *arguments)``.

        Args:
            function: of a module below `tests`; never returns.
            arguments: of `function`, after a `Ground` and the list of the descriptors behind the outputs.
            outputs: descriptors of its standard output and error, and further ones.
        """
        ours, its = socket.socketpair()
        with its:
            its_descriptors = [its.fileno(), *outputs]
            with self._lock:
                socket.send_fds(self._socket, [b"."], its_descriptors)
        # Pickled with the path: what this process could import, the fork can.
        ours.sendall(pickle.dumps(sys.path))
        ours.sendall(pickle.dumps((function, arguments)))
        ours.shutdown(socket.SHUT_WR)
        return Fork(ours)


_starting = threading.Lock()


def server() -> Server:
    """Return the server of this process, which is started when it is first needed."""
    with _starting:
        return _only_server()


@functools.cache
def _only_server() -> Server:
    return Server()


def main() -> None:
    """Import, and fork for each request on standard input, until it ends."""
    requests = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    ground = import_all([], [requests.fileno()])
    # The imported libraries are millions of objects that live as long as the process. A collection that looks through
    # them takes time, and copies the pages that a fork shares with the server.
    gc.freeze()
    _serve(requests, ground)


def _serve(requests: socket.socket, ground: Ground) -> None:
    ended, write = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([requests, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _reap(running)
        if requests not in ready:
            continue
        content, descriptors, _, _ = socket.recv_fds(requests, 1, _MOST_DESCRIPTORS)
        if not content:
            break
        connection = socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if pid == 0:
            _become(connection, descriptors[1:], ground)
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        running[pid] = connection
        _tell(connection, pid)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _reap(running: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with running.pop(pid) as connection:
                _tell(connection, status)


def _tell(connection: socket.socket, number: int) -> None:
    # The process that asked may be gone.
    with contextlib.suppress(OSError):
        connection.sendall(b"%d\n" % number)


def _become(connection: socket.socket, descriptors: Sequence[int], ground: Ground) -> NoReturn:
    """Be a fork, in its own session, to its end."""
    try:
        os.setsid()
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[1], 2)
        with connection, connection.makefile("rb") as request:
            sys.path[:] = pickle.load(request)
            function, arguments = pickle.load(request)
        function(ground, descriptors[2:], *arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        # A fork must never continue as a second server.
        os._exit(1)
