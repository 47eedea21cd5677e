"""How the script ends: hints after the traceback of an exception, and the code of `sys.exit`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

#: Functions that return a hint for an exception, or None. `det_keras.keras` adds one for API of Keras 2.
HINTS: list[Callable[[BaseException], str | None]] = []


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
