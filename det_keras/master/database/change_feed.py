"""What the latest transactions changed, so that an open page is notified of its own changes only."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

_MOST_TRANSACTIONS = 4096


class Subject(NamedTuple):
    """A thing that pages show.

    Attributes:
        kind: ``experiment``, ``trial``, ``task``, ``workspace``, ``project``, ``model`` or ``slot``; `EVERYTHING` has a
            kind of its own.
        id: its number, the id of the task, or the name of the slot's machine.
    """

    kind: str
    id: int | str


#: A change whose rows are not known.
EVERYTHING = Subject("everything", 0)


class ChangeFeed:
    """The subjects of the latest transactions, in the order of their commits; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[tuple[int, frozenset[Subject]]] = deque(maxlen=_MOST_TRANSACTIONS)
        #: The number of the latest transaction with a subject.
        self.position = 0

    def record(self, subjects: Iterable[Subject]) -> None:
        """Add a committed transaction; one without subjects concerns no page."""
        changed = frozenset(subjects)
        if not changed:
            return
        with self._lock:
            self.position += 1
            self._recent.append((self.position, changed))

    def since(self, position: int) -> tuple[int, frozenset[Subject]]:
        """Return the current position, and what changed after an earlier one.

        Args:
            position: an earlier `position`. If it is too long ago, or from another feed, the changes are `EVERYTHING`.
        """
        with self._lock:
            if self.position == position:
                return position, frozenset()
            # A position of a master before a restart may be ahead.
            if position > self.position or self._recent[0][0] > position + 1:
                return self.position, frozenset({EVERYTHING})
            changed: set[Subject] = set()
            for number, subjects in reversed(self._recent):
                if number <= position:
                    break
                changed |= subjects
            return self.position, frozenset(changed)
