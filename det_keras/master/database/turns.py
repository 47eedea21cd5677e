"""The order in which the master's writers have their turns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

# A writer that waits for its turn looks this often whether waiting has become pointless.
_LOOK_S = 0.5
# So many reports pass writers that wait longer before one of these has its turn.
_MOST_REPORTS_IN_A_ROW = 4


class Turns:
    """Gives one writer at a time its turn: in the order in which they came, reports of trials before all others.

    A lock of Python has no order: of many writers, some would wait while others have a second turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._reports: deque[threading.Event] = deque()
        self._others: deque[threading.Event] = deque()
        self._reports_in_a_row = 0

    def take(self, is_pointless: Callable[[], bool], *, is_report: bool = False) -> bool:
        """Wait for the turn; return whether it came. Whoever got it has to `leave`.

        Args:
            is_pointless: asked twice a second whether to wait no longer.
            is_report: whether a trial waits that reports.
        """
        line = self._reports if is_report else self._others
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return True
            turn = threading.Event()
            line.append(turn)
        while not turn.wait(_LOOK_S):
            if not is_pointless():
                continue
            with self._lock:
                # It may have been given the turn since.
                if not turn.is_set():
                    line.remove(turn)
                    return False
        return True

    def leave(self) -> None:
        """Give the turn to the next."""
        with self._lock:
            are_reports_next = self._reports and not (
                self._others and self._reports_in_a_row >= _MOST_REPORTS_IN_A_ROW
            )
            line = self._reports if are_reports_next else self._others
            self._reports_in_a_row = self._reports_in_a_row + 1 if are_reports_next else 0
            if line:
                line.popleft().set()
            else:
                self._is_taken = False
