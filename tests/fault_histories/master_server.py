"""A process that imports the master once and forks it as often as asked: an import takes longer than a history's trial.

It reads a JSON object a line from its standard input, starts a master, and answers with its process id. The wall clock
of these masters is shifted by the number of seconds in a file of 8 bytes, which the history changes.
"""

from __future__ import annotations

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


# Before the master is imported, whose modules take these functions by name.
time.time = lambda: _real_time() + _offset_s()
values.now = lambda: datetime.now(timezone.utc) + timedelta(seconds=_offset_s())

from det_keras.master import __main__ as master  # noqa: E402 - after the clock is replaced
from det_keras.master import app, embedded  # noqa: E402, F401 - imported for the masters


def _become_master(order: dict[str, Any]) -> None:
    global _clock
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["home"])
    log = os.open(Path(order["home"]) / "master.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(descriptor, number)
    with Path(order["clock"]).open("rb") as file:
        _clock = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    sys.argv = ["det_keras.master", "--home", order["home"], *order["arguments"]]
    code = 1
    try:
        code = int(master.main() or 0)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        sys.stderr.flush()
        # Without the handlers of this process. A master has closed what it has to.
        os._exit(code)


def main() -> None:
    """Answer orders until the standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become_master(order)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
