"""The base of the master's background threads: events wake them, and `stop` waits for the current step."""

from __future__ import annotations

import abc
import threading

from det_keras.master.database.notifier import Notifier

_STOP_TIMEOUT_S = 10.0


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
