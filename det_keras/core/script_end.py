"""How the script ends: contexts that it left open, hints after a traceback, the code of `sys.exit`."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable

# It asks Python to stop the pools of threads at the end. What is registered after it is called before.
from concurrent.futures.thread import _threads_queues
from contextlib import suppress
from typing import Any, NoReturn

from det_keras.errors import DetError

logger = logging.getLogger(__name__)

#: Functions that return a hint for an exception, or None. `det_keras.keras` adds one for API of Keras 2.
HINTS: list[Callable[[BaseException], str | None]] = []


# What closes the contexts that are open, the newest last.
_open: list[Callable[[], None]] = []


def close_at_end(close: Callable[[], None]) -> None:
    """Call `close` at the end of the script, unless `is_closed` is called before.

    If it raises, the process ends with code 1. It is called when the main thread has ended, and not by `atexit`: Python
    has stopped the pools of threads by then, and from 3.12 on starts no thread any more, but a transfer to an object
    store needs both.
    """
    _open.append(close)


def is_closed(close: Callable[[], None]) -> None:
    """Forget what was given to `close_at_end`; nothing happens if it is not known."""
    with suppress(ValueError):
        _open.remove(close)


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Close a context at the end of its ``with`` block.

    Args:
        error: what has left the block; None for nothing. An error of the script stays the one that is raised: that of
            closing is logged.
        close: closes the context.
    """
    if error is None or isinstance(error, SystemExit):
        close()
        return
    try:
        close()
    except Exception as second:
        _log(second)


def wait_for_thread(thread: threading.Thread, is_busy: Callable[[], bool]) -> None:
    """Wait for another thread of the script, if Python itself does so before the process ends.

    Args:
        thread: the thread. One of a pool never ends by itself: it is waited for as long as `is_busy`.
        is_busy: whether the thread has something to do that must not be interrupted.
    """
    if thread is threading.current_thread() or thread.daemon:
        return
    while thread.is_alive() and (thread not in _threads_queues or is_busy()):
        thread.join(0.1)


def _close_all() -> None:
    has_failed = False
    while _open:
        try:
            _open.pop()()
        except BaseException as error:
            _log(error)
            has_failed = True
    if has_failed:
        # Called first of all that is registered, so that it can call the others.
        atexit.register(_leave_as_failed)


def _leave_as_failed() -> None:
    """End the process with code 1, which Python has no other way to do at this time."""
    atexit.unregister(_leave_as_failed)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(1)


def _log(error: BaseException) -> None:
    logger.error(
        "The context was not closed as it should be: %s", error, exc_info=not isinstance(error, DetError)
    )


threading._register_atexit(_close_all)  # type: ignore[attr-defined]
# A forked process has none of its own.
os.register_at_fork(after_in_child=_open.clear)


class UncaughtHook:
    """Replaces `sys.excepthook` until it is removed.

    Args:
        before: called with the exception before its traceback is printed; None for no call.
    """

    def __init__(self, before: Callable[[BaseException], None] | None = None) -> None:
        self._before = before
        self._previous = sys.excepthook
        self.install()

    def install(self) -> None:
        """Replace the hook; also after `remove`, when an exception leaves the ``with`` block of a context."""
        sys.excepthook = self._on_uncaught

    def remove(self) -> None:
        """Restore the hook that was replaced, unless another one was installed since."""
        if sys.excepthook == self._on_uncaught:
            sys.excepthook = self._previous

    def _on_uncaught(self, kind: Any, error: BaseException, trace: Any) -> None:
        if self._before is not None:
            self._before(error)
        sys.excepthook = self._previous
        self._previous(kind, error, trace)
        for hint in filter(None, (give(error) for give in HINTS)):
            print(f"\nHint: {hint}", file=sys.stderr, flush=True)  # noqa: T201 - beside the traceback


class ExitListener:
    """Records the code that the script passes to `sys.exit`, until it is removed.

    Nothing else tells an exit handler with which code the process ends.

    Attributes:
        code: the last code; None if there was no call, or one without a code, or if the script went on after it.
    """

    def __init__(self) -> None:
        self.code: object = None
        self._previous = sys.exit
        sys.exit = self._exit

    def remove(self) -> None:
        """Restore `sys.exit`, unless it was replaced again since."""
        if sys.exit == self._exit:
            sys.exit = self._previous

    def _exit(self, code: Any = None, /) -> NoReturn:
        # In another thread it ends only that thread.
        if threading.current_thread() is threading.main_thread():
            self.code = code
        self._previous(code)
