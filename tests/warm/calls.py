"""Functions of the tests in forks of the server.

A fork may be killed with SIGKILL, by itself or from outside; that is a result, not an error.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from warm.program import Ground, become_new
from warm.server import server

__all__ = ["ForkServer", "Send"]

_PATIENCE_S = 120.0

#: How a child reports before its end: values by name. `kill_in_s` asks for a SIGKILL after so many seconds.
Send = Callable[[dict[str, Any]], None]


class ForkServer:
    """Runs functions in forks; may be used by several threads."""

    def __init__(self) -> None:
        # Before there are threads that call `run`.
        server()

    def run(
        self, title: str, log: Path, function: Callable[..., dict[str, Any]], *arguments: Any
    ) -> dict[str, Any]:
        """Run ``function(send, *arguments)`` in a child, to its end or until it is killed.

        Args:
            title: names the run in errors.
            log: file that what the child prints is appended to.
            function: of a module, so that it can be pickled; returns values by name.
            arguments: of `function`, after a `Send`.

        Returns:
            What the child sent, then what the function returned, with ``ended`` as True. If it was killed after
            it had sent something, only what it sent.

        Raises:
            RuntimeError: it failed or hangs; the end of its log is shown.
        """
        limit = time.monotonic() + _PATIENCE_S
        read, write = os.pipe()
        with log.open("ab") as file:
            call = (function, arguments, dict(os.environ), str(Path.cwd()))
            process = server().fork(_be_call, *call, outputs=[file.fileno(), file.fileno(), write])
        os.close(write)
        here = Connection(read, writable=False)
        found: dict[str, Any] = {}
        try:
            while "ended" not in found and "failure" not in found:
                if not wait([here], timeout=max(limit - time.monotonic(), 0)):
                    raise RuntimeError(f"{title} hangs.\n{_tail(log)}")
                try:
                    found.update(here.recv())
                except EOFError:
                    break
                kill_in_s = found.pop("kill_in_s", None)
                # The end of the run or this time, whichever comes first.
                if kill_in_s is not None and not here.poll(kill_in_s):
                    os.kill(process.pid, signal.SIGKILL)
        finally:
            if not process.wait(5.0):
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            here.close()
        assert process.status is not None
        code = os.waitstatus_to_exitcode(process.status)
        was_killed = bool(found) and code == -signal.SIGKILL
        if "failure" in found or not (was_killed or "ended" in found):
            reason = found.get("failure", f"exit code {code}")
            raise RuntimeError(f"{title} failed: {reason}\n{_tail(log)}")
        return found


def _be_call(
    ground: Ground,
    descriptors: Sequence[int],
    function: Callable[..., dict[str, Any]],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    directory: str,
) -> NoReturn:
    become_new(environment, directory, ground, descriptors=descriptors)
    pipe = Connection(descriptors[0], readable=False)
    try:
        result = function(pipe.send, *arguments)
    except BaseException:
        pipe.send({"failure": traceback.format_exc()})
        raise
    pipe.send({**result, "ended": True})
    # TensorFlow takes a while to leave.
    os._exit(0)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:] if log.exists() else ""
