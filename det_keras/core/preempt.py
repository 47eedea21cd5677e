"""Requests to stop: from the master, by a long poll in a thread, and from signals."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from det_keras.core.backend.base import Backend
from det_keras.errors import DetError

__all__ = ["PreemptContext", "StopSignals"]

logger = logging.getLogger(__name__)

_POLL_S = 60.0
_RETRY_S = 2.0


class PreemptContext:
    """Tells whether this process was asked to stop.

    Args:
        backend: whom to ask.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._requested = threading.Event()
        self._closing = threading.Event()
        self._acknowledged = False
        self._thread: threading.Thread | None = None

    def start(self) -> PreemptContext:
        """Begin to watch, and return self; once is enough."""
        if self._thread is None and self._backend.is_preemptible:
            self._thread = threading.Thread(target=self._watch, name="det-preemption", daemon=True)
            self._thread.start()
        return self

    @property
    def is_requested(self) -> bool:
        """Whether a stop was asked for; does not acknowledge and costs next to nothing."""
        return self._requested.is_set()

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether to save a checkpoint and exit now.

        Args:
            auto_ack: promise the master, at the first True, that the process will exit soon and wants to
                be resumed. Without that promise an exit with code 0 means that the training is finished.
        """
        if not self._requested.is_set():
            return False
        if auto_ack:
            self.acknowledge()
        return True

    def acknowledge(self) -> None:
        """Promise to exit soon and to be resumed; once is enough."""
        if not self._acknowledged:
            self._acknowledged = True
            self._backend.acknowledge_preemption()

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                if self._backend.wait_for_preemption(_POLL_S):
                    self._requested.set()
                    return
            except DetError as error:
                # A master that restarts asks again; until then nobody can want this process to stop.
                logger.debug("Asking for preemption failed and is tried again: %s", error)
                self._closing.wait(_RETRY_S)


class StopSignals:
    """Turns SIGTERM and the first Ctrl-C into a request, while the block runs.

    A second Ctrl-C raises KeyboardInterrupt at once. Outside the main thread, where Python delivers no
    signals, the block changes nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handler())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handler(self) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, _: FrameType | None) -> None:
            if self.received is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.received = number

        return handle
