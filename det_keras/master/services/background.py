"""What the master's background threads have in common: news wakes them, and stopping lets them finish a step."""

from __future__ import annotations

import abc
import threading

from det_keras.master.database.events import Notifier

__all__ = ["Background"]

_LEAVES_WITHIN_S = 10.0


class Background(abc.ABC):
    """A thread that works whenever there is news.

    Args:
        name: of the thread.
        notifier: brings the news.
        topic: of the news.
    """

    def __init__(self, name: str, notifier: Notifier, topic: str) -> None:
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        notifier.listen(topic, self._wake.set)

    def start(self) -> None:
        """Take up what an earlier master left, and begin."""
        self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step that it is at; what is left is done next time."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=_LEAVES_WITHIN_S)

    @abc.abstractmethod
    def _run(self) -> None:
        """Work until `_stopping`, and sleep on `_wake` in between."""
