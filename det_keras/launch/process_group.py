"""Process groups: ended as a whole, also when their launcher is killed.

Each process that a launcher starts has its own process group, so that a signal also reaches its children. Nothing
in the group outlives the launcher: the kernel kills the started process when its parent dies
(``PR_SET_PDEATHSIG``), and the launcher's reaper kills the rest of the group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


class GroupReaper:
    """A forked process that kills the watched groups when this process ends.

    It has its own session, so signals to the launcher's group do not reach it. Create it before the launcher starts
    threads: a fork copies only the calling thread, and a lock that another thread holds would stay locked.

    The child reads from a pipe whose write end only the launcher keeps. The kernel closes that end when the
    launcher ends, however it ends; the child then reads the end of the file and kills the groups. If somebody has
    stopped the child, the kernel lets it continue then (on Linux).

    Args:
        kept: descriptors that stay open until the groups are killed, such as that of a locked file.
    """

    def __init__(self, kept: Sequence[int] = ()) -> None:
        read, self._write = os.pipe()
        signal_at_end = _signal_at_end_of_parent(signal.SIGCONT)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                if signal_at_end is not None:
                    signal_at_end()
                # Nothing that is to end with the launcher may stay open here: pipes, memory, listening sockets.
                opened = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
                for number in opened - {0, 1, 2, read, *kept}:
                    with contextlib.suppress(OSError):
                        os.close(number)
                _kill_at_end(read)
            finally:
                # The fork must never continue as a second launcher, even after an exception.
                os._exit(0)
        os.close(read)

    def watch(self, group: int) -> None:
        """Kill this group when the launcher ends; call it once the group has started."""
        self._order(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """Stop watching this group; call it before its leader is reaped, since the number may be reused after that."""
        self._order(b"-%d\n" % group)

    def dismiss(self) -> None:
        """End the reaper; it kills the groups that are still watched."""
        os.close(self._write)
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            # Somebody may have stopped it. Its number is not used again before it is waited for.
            os.kill(self._pid, signal.SIGCONT)
            os.waitpid(self._pid, 0)

    def _order(self, text: bytes) -> None:
        # The reaper may have been killed; the launcher and its groups continue without it.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, text)


def _kill_at_end(read: int) -> None:
    os.setsid()
    orders = b""
    while data := os.read(read, 4096):
        orders += data
    groups: set[int] = set()
    for order in orders.split():
        (groups.add if order.startswith(b"+") else groups.discard)(int(order[1:]))
    for group in groups:
        signal_group(group, signal.SIGKILL)


def start_group(
    argv: Sequence[str],
    environment: Mapping[str, str],
    directory: str | None = None,
    *,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in its own group that is killed when this process dies; its output goes to pipes.

    Args:
        argv: the command.
        environment: the complete environment.
        directory: working directory; None for that of this process.
        descriptors: open descriptors of this process that it inherits.

    Raises:
        OSError: the process cannot be started.
    """
    return subprocess.Popen(
        argv,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        preexec_fn=die_with_parent(),
        pass_fds=descriptors,
    )


def die_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` that has the kernel kill a child when this process dies; None except on Linux."""
    signal_at_end = _signal_at_end_of_parent(signal.SIGKILL)
    if signal_at_end is None:
        return None
    parent = os.getpid()

    def apply() -> None:
        signal_at_end()
        # If the parent died before, no signal will come: the child then has another parent.
        if os.getppid() != parent:
            os._exit(1)

    return apply


def _signal_at_end_of_parent(number: int) -> Callable[[], object] | None:
    """Return what a fork calls to get a signal when this thread ends; None except on Linux."""
    if sys.platform != "linux":
        return None
    # Resolved before the fork: the child must do as little as possible between fork and exec.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def signal_group(group: int, number: int) -> None:
    """Send a signal to every process of a group; a group that has ended is not an error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


@contextlib.contextmanager
def child_signals() -> Iterator[int]:
    """Yield a descriptor that becomes readable when a child ends or another handled signal arrives.

    A signal that arrives between a check of the children and the next `select` leaves a byte in the pipe, so that
    `select` returns at once.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read)
        os.close(write)


def has_exited(child: subprocess.Popen[bytes]) -> bool:
    """Return whether a child has ended, without reaping it: its number then still names only its own group."""
    if not hasattr(os, "waitid"):
        return child.poll() is not None
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def ending_signal(child: subprocess.Popen[bytes]) -> int | None:
    """Return the number of the signal that ended a child, without reaping it; None if it exited or still runs."""
    state = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return state.si_status if state is not None and state.si_code != os.CLD_EXITED else None


def has_members(group: int) -> bool:
    """Return whether a process of a group still runs; processes that have ended and are not reaped do not count."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while its file is read.
        with contextlib.suppress(OSError):
            # The name, in parentheses, may contain anything; state, parent and group follow it.
            state, _, its_group = status.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False
