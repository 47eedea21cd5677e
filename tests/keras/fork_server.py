"""Runs functions in processes that start fast: children of a server that has imported TensorFlow.

TensorFlow takes seconds to import. So a fork server imports it once, without using it, and forks a child for
every call. A child may be killed with SIGKILL, by itself or from outside; that is a result, not an error.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection, forkserver, get_context
from pathlib import Path
from typing import Any

__all__ = ["ForkServer", "Send"]

_PATIENCE_S = 120.0
_HERE = Path(__file__).resolve().parent
# A process has one fork server for all its harnesses. What is not installed is skipped.
_PRELOAD = ["kill_harness", "script_runs", "sklearn.datasets", "pandas", "keras_tuner", "pytest"]

#: How a child reports before its end: values by name. `kill_in_s` asks for a SIGKILL after so many seconds.
Send = Callable[[dict[str, Any]], None]


class ForkServer:
    """Runs functions in children; may be used by several threads."""

    def __init__(self) -> None:
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)
        # The server does not inherit `sys.path` in Python 3.11, but the environment.
        previous = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(_HERE), str(_HERE.parents[1]), *filter(None, [previous])]
        )
        try:
            forkserver.ensure_running()
        finally:
            if previous is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = previous

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
        here, there = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_be_child, args=(function, arguments, there, str(log)))
        limit = time.monotonic() + _PATIENCE_S
        process.start()
        there.close()
        found: dict[str, Any] = {}
        try:
            while "ended" not in found and "failure" not in found:
                if not connection.wait([here], timeout=max(limit - time.monotonic(), 0)):
                    raise RuntimeError(f"{title} hangs.\n{_tail(log)}")
                try:
                    found.update(here.recv())
                except EOFError:
                    break
                kill_in_s = found.pop("kill_in_s", None)
                # The end of the run or this time, whichever comes first.
                if kill_in_s is not None and not here.poll(kill_in_s):
                    process.kill()
        finally:
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()
            here.close()
        was_killed = bool(found) and process.exitcode == -signal.SIGKILL
        if "failure" in found or not (was_killed or "ended" in found):
            reason = found.get("failure", f"exit code {process.exitcode}")
            raise RuntimeError(f"{title} failed: {reason}\n{_tail(log)}")
        return found


def _be_child(
    function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], pipe: Any, log: str
) -> None:
    # The imported libraries are millions of objects that live as long as the process. A collection that looks through
    # them takes time, and copies the pages that the child shares with the server.
    gc.freeze()
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
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
