"""Requests to stop: from the master, by a long poll in a thread, and from signals."""

from __future__ import annotations

import enum
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from det_keras.core.backend.base import Backend
from det_keras.core.distributed import DistributedContext
from det_keras.errors import DetError

__all__ = ["PreemptContext", "PreemptMode", "StopSignals"]

logger = logging.getLogger(__name__)

_POLL_S = 60.0
_RETRY_S = 2.0


class PreemptMode(enum.Enum):
    """Who calls `should_preempt`, and how the workers come to the same answer.

    Attributes:
        WorkersAskChief: all workers call it in step; the chief knows, and all of them hear the same.
        ChiefOnly: the chief alone calls it, and tells the others in the script's own way.
        WorkersAskMaster: each worker asks for itself, and may hear of a request a little before another.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Watches whether this process is asked to stop.

    Args:
        backend: receives the requests of the master.
        distributed: the workers.
        mode: how they come to one answer.
        ask: asks for this worker alone, as `Backend.wait_for_preemption` does; for `PreemptMode.WorkersAskMaster`,
            where the backend speaks for the chief only.
    """

    def __init__(
        self,
        backend: Backend,
        distributed: DistributedContext | None = None,
        mode: PreemptMode = PreemptMode.WorkersAskChief,
        *,
        ask: Callable[[float], bool] | None = None,
    ) -> None:
        self._backend = backend
        self._distributed = distributed or DistributedContext()
        self._mode = PreemptMode(mode)
        self._ask = ask or (backend.wait_for_preemption if backend.is_preemptible else None)
        self._requested = threading.Event()
        self._closing = threading.Event()
        self._acknowledged = False
        self._thread: threading.Thread | None = None

    def start(self) -> PreemptContext:
        """Begin to watch, and return self; once is enough."""
        if self._thread is None and self._ask is not None:
            self._thread = threading.Thread(target=self._watch, name="det-preemption", daemon=True)
            self._thread.start()
        return self

    @property
    def is_requested(self) -> bool:
        """Whether a stop was asked for; does not acknowledge and costs next to nothing."""
        return self._requested.is_set()

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether to save a checkpoint and exit now; who may call it is the `PreemptMode`'s.

        Args:
            auto_ack: promise the master, at the first True, that the process will exit soon and wants to
                be resumed. Without that promise an exit with code 0 means that the training is finished.

        Raises:
            RuntimeError: a worker asks in `PreemptMode.ChiefOnly`.
        """
        if self._mode is PreemptMode.ChiefOnly and not self._distributed.is_chief:
            raise RuntimeError(
                f"Rank {self._distributed.rank} called `should_preempt`, which is the chief's alone in "
                "PreemptMode.ChiefOnly. Tell it from rank 0, or use PreemptMode.WorkersAskChief."
            )
        requested = self._requested.is_set()
        if self._mode is PreemptMode.WorkersAskChief and self._distributed.size > 1:
            requested = self._distributed.broadcast(requested)
        if requested and auto_ack:
            self.acknowledge_preemption_signal()
        return requested

    def acknowledge_preemption_signal(self) -> None:
        """Promise to exit soon and to be resumed; once is enough."""
        if not self._acknowledged:
            self._acknowledged = True
            self._backend.acknowledge_preemption()

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()

    def _watch(self) -> None:
        assert self._ask is not None
        while not self._closing.is_set():
            try:
                if self._ask(_POLL_S):
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
