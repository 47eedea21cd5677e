"""A process that imports the master once and forks it as often as asked.

    python tests/forked_masters/server.py [--shift-clocks]

It reads a JSON object a line from its standard input, starts a master or tells how one ended, and answers with a number
or ``null`` in a line. With ``--shift-clocks`` the wall clock of these masters is shifted by the number of seconds in a
file of 8 bytes, which the test changes.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import struct
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from det_keras.protocol import values

_real_time = time.time
_clock: mmap.mmap | None = None


def _offset_s() -> float:
    return 0.0 if _clock is None else float(struct.unpack_from("d", _clock)[0])


if "--shift-clocks" in sys.argv:
    # Before the master is imported, whose modules take these functions by name.
    time.time = lambda: _real_time() + _offset_s()
    values.now = lambda: datetime.now(timezone.utc) + timedelta(seconds=_offset_s())

from det_keras.master import __main__ as master  # noqa: E402 - after the clock is replaced
from det_keras.master import app, embedded  # noqa: E402, F401 - imported for the masters

#: The exit codes of the masters that have ended, by process id.
_codes: dict[int, int] = {}


def _become_master(order: dict[str, Any]) -> None:
    global _clock
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    os.umask(order["umask"])
    os.chdir(order["home"])
    log = os.open(Path(order["home"]) / "master.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(descriptor, number)
    if order["clock"] is not None:
        with Path(order["clock"]).open("rb") as file:
            _clock = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    sys.argv = ["det_keras.master", *order["arguments"]]
    code = 1
    try:
        code = int(master.main() or 0)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        sys.stderr.flush()
        # Without the handlers of this process. A master has closed what it has to.
        os._exit(code)


def _reap(*_: Any) -> None:
    """Note the exit codes of masters at once: a process that waits for the end of one must not see a zombie."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def _start(order: dict[str, Any]) -> int:
    # A master that ends at once must not be noted before its number is known to be a new one.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _become_master(order)
    _codes.pop(pid, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    return pid


def main() -> None:
    """Answer orders until the standard input ends."""
    signal.signal(signal.SIGCHLD, _reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = _codes.get(order["ended"]) if "ended" in order else _start(order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
