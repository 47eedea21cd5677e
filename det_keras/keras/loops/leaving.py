"""Finds the exception with which a script leaves a loop and that it catches.

A generator that is left gets `GeneratorExit` at a `break` and at an exception alike, before the script's own handler
has the exception. So the interpreter is asked to call a trace function until the script's next line, which is that of
the handler, or the one after the loop. A debugger's own trace function is set again then.
"""

from __future__ import annotations

import dis
import sys
from types import FrameType
from typing import Any


class LeavingError:
    """The exception with which the code of a frame leaves a loop at this moment; made while `GeneratorExit` is handled.

    Args:
        frame: of the code.

    Attributes:
        error: the exception, once the script handles it; None at a `break`.
    """

    def __init__(self, frame: FrameType) -> None:
        self.error: BaseException | None = None
        leaving = sys.exc_info()[1]
        # An exception that the script already handles around the loop.
        self._known = leaving.__context__ if leaving is not None else None
        self._frame: FrameType | None = None
        self._of_frame: Any = None
        self._before = sys.gettrace()
        self._watch(frame)
        sys.settrace(self._trace)

    def stop(self) -> None:
        """Watch no longer."""
        if self._frame is not None:
            sys.settrace(self._before)
            self._watch(None)

    def _watch(self, frame: FrameType | None) -> None:
        if self._frame is not None:
            self._frame.f_trace = self._of_frame
        self._frame = frame
        if frame is not None:
            self._of_frame, frame.f_trace = frame.f_trace, self._trace

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        handled = sys.exc_info()[1]
        if handled is self._known or isinstance(handled, GeneratorExit):
            handled = None
        if frame is not self._frame:
            # A context manager of the script gets the exception in its ``__exit__``.
            if handled is not None:
                self.error = handled
                self.stop()
            return None
        if event == "return" and frame.f_back is not None:
            # The function returns, or the exception leaves it as well.
            self._watch(frame.f_back)
            return None
        if event == "line" and dis.opname[frame.f_code.co_code[frame.f_lasti]] == "PUSH_EXC_INFO":
            # The end of a `with` begins here, and has the exception after this instruction.
            return self._trace
        found = argument[1] if event == "exception" else handled
        # Python 3.11 and older may give a text in its place, where code in C has raised it.
        self.error = found if isinstance(found, BaseException) else None
        self.stop()
        return None
