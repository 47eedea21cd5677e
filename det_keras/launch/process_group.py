"""Process groups: ended as a whole, and never left behind by a launcher that is killed.

What a launcher starts gets a process group of its own, so that whatever it starts in turn can be signalled with
it. Two things outlive no launcher: the started process, which asks the kernel to be killed when its parent
dies, and the rest of its group, which the launcher's reaper kills.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["GroupReaper", "child_signals", "has_exited", "signal_group", "start_group"]

_PR_SET_PDEATHSIG = 1


class GroupReaper:
    """A fork that does nothing but kill, when this process is gone, the groups that it was told of.

    It is out of reach of signals to the launcher's own group. To be made before the launcher starts threads.
    """

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write)
                _bury(read)
            finally:
                # The fork must never continue as a second launcher, even after an exception.
                os._exit(0)
        os.close(read)

    def watch(self, group: int) -> None:
        """From now on, kill this group when the launcher dies."""
        self._order(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """Stop watching this group; call it before its leader is reaped, when its number may be used again."""
        self._order(b"-%d\n" % group)

    def dismiss(self) -> None:
        """End the reaper; the groups it was told of and not to forget are killed."""
        os.close(self._write)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _order(self, text: bytes) -> None:
        # Somebody may have killed the reaper: no reason to end what it watches.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, text)


def _bury(read: int) -> None:
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
    argv: Sequence[str], environment: Mapping[str, str], directory: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own that dies with this one; what it prints comes through pipes.

    Args:
        argv: the command.
        environment: complete.
        directory: where it starts; None for this process's own.

    Raises:
        OSError: it cannot be started.
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
    )


def die_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` by which a child is killed when this process dies; None where the system cannot."""
    if sys.platform != "linux":
        return None
    # Looked up before the fork: a child between fork and exec should do as little as possible.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def apply() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the request was in force.
        if os.getppid() != parent:
            os._exit(1)

    return apply


def signal_group(group: int, number: int) -> None:
    """Send a signal to every process of a group; one that has ended is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


@contextlib.contextmanager
def child_signals() -> Iterator[int]:
    """Yield a descriptor that becomes readable when a child ends, or another handled signal comes."""
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
    """Return whether a child has ended, without reaping it: its number still names its group and no other."""
    if not hasattr(os, "waitid"):
        return child.poll() is not None
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
