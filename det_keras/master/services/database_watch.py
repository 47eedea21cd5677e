"""The thread that keeps hold of a database on a server while no call writes.

A master that writes nothing would not notice that the server was restarted and that another master took the database.
"""

from __future__ import annotations

import contextlib
import threading

from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError

_PERIOD_S = 1.0


class DatabaseWatch:
    """Connects again after the server was away; without a server it does nothing.

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
        while not self._stopping.wait(_PERIOD_S) and not self._store.is_lost:
            # The database reports by itself when its server goes away and returns.
            with contextlib.suppress(UnavailableError):
                self._store.check()
