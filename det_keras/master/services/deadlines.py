"""Times of the database at which something is due, measured by the steady clock once they are known.

The wall clock may be set while the master runs, by hand or over the network. A time limit must neither end at once by
that nor take hours. A restarted master measures the rest by the wall clock again.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Generic, TypeVar

from det_keras.protocol.values import now

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """The known deadlines by key, which one thread asks about."""

    def __init__(self) -> None:
        # With the time of the database, by which a change of it is noticed.
        self._known: dict[K, tuple[datetime, float]] = {}

    def update(self, times: Mapping[K, datetime]) -> None:
        """Take what the database has now; what it no longer has is forgotten."""
        self._known = {key: self._measured(key, at) for key, at in times.items()}

    def due(self) -> set[K]:
        """Return the keys whose time has come."""
        moment = time.monotonic()
        return {key for key, (_, deadline) in self._known.items() if deadline <= moment}

    def _measured(self, key: K, at: datetime) -> tuple[datetime, float]:
        known = self._known.get(key)
        if known is not None and known[0] == at:
            return known
        return at, time.monotonic() + (at - now()).total_seconds()
