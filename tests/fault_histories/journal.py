"""What clients sent, and what was acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ACKNOWLEDGED", "REFUSED", "UNKNOWN", "Entry", "Journal"]

#: The master answered with 200.
ACKNOWLEDGED = "acknowledged"
#: The master answered with a reason not to do it, perhaps to a repeated request.
REFUSED = "refused"
#: No answer came, or one that does not say what was done.
UNKNOWN = "unknown"


@dataclass
class Entry:
    """A request.

    Attributes:
        verb: the verb of the `Action`.
        target: its target.
        value: its value.
        outcome: `ACKNOWLEDGED`, `REFUSED` or `UNKNOWN`; the last also while it is being sent.
        answer: what the client keeps of the answer, or the error.
    """

    verb: str
    target: str
    value: Any
    outcome: str = UNKNOWN
    answer: Any = None


@dataclass
class Journal:
    """All requests of all clients, in the order in which each client sent them.

    Attributes:
        entries: the requests.
    """

    entries: list[Entry] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, verb: str, target: str, value: Any) -> Entry:
        """Note that a request is about to be sent."""
        entry = Entry(verb, target, value)
        with self._lock:
            self.entries.append(entry)
        return entry

    def of(self, target: str, *verbs: str) -> Iterator[Entry]:
        """Yield the requests about a target."""
        return (entry for entry in self.entries if entry.target == target and entry.verb in verbs)

    @property
    def acknowledged(self) -> int:
        """How many requests were acknowledged."""
        return sum(entry.outcome == ACKNOWLEDGED for entry in self.entries)
