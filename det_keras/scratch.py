"""What a process would leave behind if it is killed: others can tell that nobody needs it, and remove it."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import tempfile
from pathlib import Path

_PREFIX = "det-"
# Linux's PROC_PID_INIT_INO.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


class Scratch(tempfile.TemporaryDirectory[str]):
    """A temporary directory of this process.

    Its name contains the process, so that other processes can tell whether somebody still needs it.

    Args:
        purpose: a word for people who see the directory, such as ``state``.

    Examples:
        >>> with Scratch("example") as name:
        ...     Path(name).is_dir()
        True
    """

    def __init__(self, purpose: str) -> None:
        _remove_those_of_dead_processes()
        super().__init__(prefix=f"{_PREFIX}{purpose}{_owner()}{os.getpid()}~", ignore_cleanup_errors=True)


@functools.cache
def machine_name() -> str:
    """Return a name of this machine, and of the container, in which process ids have a meaning.

    Containers may share the name of their machine, and then have process ids of their own.
    """
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()
    # Outside of containers the number is the same on all machines, and after a restart of the machine.
    place = "" if namespace == _FIRST_PID_NAMESPACE else f"-{namespace}-{boot}"
    return f"{socket.gethostname()}{place}"


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _owner() -> str:
    return f"~{machine_name()}~"


@functools.cache
def _remove_those_of_dead_processes() -> None:
    """Remove what killed processes of this machine left; once in a process."""
    owner = _owner()
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*~*~*"):
        _, _, rest = path.name.partition(owner)
        pid = rest.partition("~")[0]
        # Those of other users cannot be removed.
        if pid.isdigit() and not is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)
