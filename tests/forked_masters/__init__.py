"""Masters that are forked from a process which has imported them: most of the start of a master is its imports.

For tests of what a master does. Tests of how one is started use `det_keras.master.process.start` as it is, or the
command line.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from det_keras.home import Home
from det_keras.launch.importable import importable
from det_keras.master import process
from det_keras.master.process import RunningMaster

__all__ = ["ForkedMaster", "MasterServer", "start"]


class ForkedMaster:
    """A master, with the part of `subprocess.Popen` that `det_keras.master.process.start` uses."""

    def __init__(self, pid: int, server: MasterServer) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid)
        return self.returncode


class MasterServer:
    """Forks masters; may be used by several threads.

    Args:
        shifts_clocks: whether its masters can have a clock of their own.
    """

    def __init__(self, *, shifts_clocks: bool = False) -> None:
        flags = ["--shift-clocks"] * shifts_clocks
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), *flags],
            env=importable(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        assert self._read() == "ready"

    def spawn(
        self, home: Home, arguments: Sequence[str], environment: Mapping[str, str], clock: Path | None = None
    ) -> ForkedMaster:
        """Fork a master.

        Args:
            home: its data root.
            arguments: of ``python -m det_keras.master``.
            environment: its variables.
            clock: a file with the seconds by which its clock is shifted.
        """
        order = {
            "home": str(home.root),
            "clock": None if clock is None else str(clock),
            "environment": dict(environment),
            "umask": _umask(),
            "arguments": list(arguments),
        }
        return ForkedMaster(self._ask(order), self)

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a master, None while it runs."""
        code: int | None = self._ask({"ended": pid})
        return code

    def close(self) -> None:
        """End the server; its masters run on."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, order: dict[str, Any]) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


@functools.cache
def _shared() -> MasterServer:
    server = MasterServer()
    atexit.register(server.close)
    return server


def start(home: Home, **options: Any) -> RunningMaster:
    """Start a master like `det_keras.master.process.start`, forked from one server for all tests of this process."""
    return process.start(home, spawn=_shared().spawn, **options)
