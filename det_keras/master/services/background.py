"""What the master's background threads have in common: their base, their deadlines, and the watch over the database."""

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Generic, TypeVar

from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError
from det_keras.protocol.values import now

K = TypeVar("K", bound=Hashable)

_STOP_TIMEOUT_S = 10.0
_WATCH_PERIOD_S = 1.0


class Background(abc.ABC):
    """A thread that works after each event of a topic.

    Args:
        name: name of the thread.
        notifier: the source of events.
        topic: the topic to listen to.
    """

    def __init__(self, name: str, notifier: Notifier, topic: str) -> None:
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        notifier.listen(topic, self._wake.set)

    def start(self) -> None:
        """Start the thread; it first does the work that an earlier master left."""
        self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step; the next start does the remaining work."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=_STOP_TIMEOUT_S)

    @abc.abstractmethod
    def _run(self) -> None:
        """Work until `_stopping`, and sleep on `_wake` in between.

        Clear `_wake` before reading the database, not after: an event that is set during the work then causes another
        round.
        """


class DatabaseWatch:
    """Keeps hold of a database on a server while no call writes; without a server it does nothing.

    A master that writes nothing would not notice that the server was restarted and that another master took the
    database.

    Args:
        store: the database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="database_watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._store.database.is_shared:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while not self._stopping.wait(_WATCH_PERIOD_S) and not self._store.is_lost:
            # The database reports by itself when its server goes away and returns.
            with contextlib.suppress(UnavailableError):
                self._store.check()


class Deadlines(Generic[K]):
    """The times of the database at which something is due, by key; one thread asks about them.

    They are measured by the steady clock once they are known. The wall clock may be set while the master runs, by hand
    or over the network: a time limit must neither end at once by that nor take hours. A restarted master measures the
    rest by the wall clock again.
    """

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
