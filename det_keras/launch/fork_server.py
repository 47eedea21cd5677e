"""The process that forks supervisors, and the master's connection with it.

A supervisor that is started as a program spends most of its processor time on the start of Python and on imports. The
fork server has done both once. It has a single thread, so that its forks are whole, and it holds nothing that a
supervisor must not inherit.

A request names a spec and passes three descriptors: the supervisor's standard input, its output, and the write end of a
pipe. The supervisor writes one byte into the pipe when it holds its lock, and closes it. So the pipe has an end without
a byte only when all processes that could have become this supervisor are gone: the request can be repeated, and a
supervisor is neither lost nor started twice, whichever process was killed.

The fork server ends when the master does, because its standard input, a socket, ends then. The supervisors have
sessions of their own and live on. While it runs, it sends one byte for each end of a supervisor, so that the master
need not wait for its next look at the files.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from det_keras.launch.supervisor import supervise

# The longest path that Linux takes is 4,096 bytes.
_MOST_BYTES = 8192
_STARTED = b"s"
_ENDED = b"e"


@dataclass(frozen=True)
class Inheritance:
    """What tasks have of the account, and not of the master, which changed it for itself.

    Attributes:
        umask: the mode of their files; None for that of this process.
        file_limit: how many files each of their processes may have open; None for as many as this process.
    """

    umask: int | None = None
    file_limit: int | None = None


NOTHING_CHANGED = Inheritance()


class ForkServer:
    """Starts supervisors by a fork server, which is started when it is first needed.

    Not thread-safe. After `close`, the next supervisor gets a new server.

    Args:
        environment: the complete environment of the supervisors.
        when_ended: called from a thread when some supervisor has ended. Not for those that outlive their server.
        inheritance: what the supervisors and their tasks have of the account.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        when_ended: Callable[[], object] = lambda: None,
        inheritance: Inheritance = NOTHING_CHANGED,
    ) -> None:
        self._environment = dict(environment)
        self._inheritance = inheritance
        self._when_ended = when_ended
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the server; None while there is none."""
        return None if self._process is None else self._process.pid

    def start_supervisor(self, spec: Path, *, stdin: int, output: int) -> None:
        """Start the supervisor of a ``spec.json``; return when it holds its lock.

        Args:
            spec: the file; its directory is the supervisor's working directory.
            stdin: descriptor of its standard input.
            output: descriptor of its standard output and error.

        Raises:
            ChildProcessError: it was killed, or found no space on the disk, before it had started.
            OSError: it cannot be started.
        """
        # The first try also fails if the server was killed since the last supervisor.
        for _ in range(2):
            if self._ask(spec, stdin, output):
                return
            self.close()
        raise ChildProcessError(f"The supervisor of {spec} ended before it had started; see {spec.parent}")

    def close(self) -> None:
        """End the server; supervisors continue."""
        if self._socket is None or self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._socket = self._process = None

    def _ask(self, spec: Path, stdin: int, output: int) -> bool:
        """Return whether the supervisor was started; if not, it never will be."""
        connection = self._socket or self._start()
        read, write = os.pipe()
        with os.fdopen(read, "rb", 0) as answer:
            with os.fdopen(write, "wb", 0), contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(connection, [os.fsencode(spec)], [stdin, output, write])
            return answer.read(1) == _STARTED

    def _start(self) -> socket.socket:
        ours, its = socket.socketpair()
        umask, file_limit = self._inheritance.umask, self._inheritance.file_limit
        arguments = [] if file_limit is None else [str(file_limit)]
        with its:
            process = subprocess.Popen(
                [sys.executable, "-m", "det_keras.launch.fork_server", *arguments],
                # A module of the user's in the working directory would be imported before those of Python.
                cwd="/",
                env=self._environment,
                stdin=its.fileno(),
                start_new_session=True,
                umask=-1 if umask is None else umask,
            )
        self._socket, self._process = ours, process
        ends = (ours.dup(), self._when_ended)
        threading.Thread(target=_hear_ends, args=ends, name="ends_of_tasks", daemon=True).start()
        return ours


def _hear_ends(connection: socket.socket, when_ended: Callable[[], object]) -> None:
    with connection, contextlib.suppress(ConnectionResetError):
        while connection.recv(_MOST_BYTES):
            when_ended()


def main(arguments: Sequence[str]) -> int:
    """Fork a supervisor for each request on standard input, until it ends.

    Args:
        arguments: the limit of open files; none to inherit it.
    """
    if arguments:
        # Here, not between fork and exec in the master, whose other threads may hold locks at that moment.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(arguments[0]), hard))
    requests = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, lambda *_: _reap(requests))
    # The forks share the memory of objects that their garbage collection does not touch.
    gc.freeze()
    while True:
        path, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not path:
            return 0
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                # It owns descriptor 0, which becomes the supervisor's standard input.
                requests.detach()
                _become_supervisor(Path(os.fsdecode(path)), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _reap(requests: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            # If the master has ended, so does this process with the next request.
            with contextlib.suppress(OSError):
                requests.send(_ENDED, socket.MSG_DONTWAIT)


def _become_supervisor(spec: Path, descriptors: Sequence[int]) -> None:
    """Run a supervisor in this fork to its end."""
    code = 1
    try:
        stdin, output, started = descriptors
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, source in enumerate((stdin, output, output)):
            os.dup2(source, number)
        os.close(stdin)
        os.close(output)
        os.chdir(spec.parent)
        supervise(spec, lambda: _report_start(started))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # The fork must never continue as a second server, even after an exception.
        sys.stderr.flush()
        os._exit(code)


def _report_start(started: int) -> None:
    # A master that was killed in the meantime does not read it.
    with contextlib.suppress(BrokenPipeError):
        os.write(started, _STARTED)
    os.close(started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
