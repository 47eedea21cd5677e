"""Requests to stop: from the master, by a long poll on a thread, and from signals."""

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

logger = logging.getLogger(__name__)

_POLL_S = 60.0
_RETRY_S = 2.0


class PreemptMode(enum.Enum):
    """Who calls `should_preempt`, and how the workers agree on the result.

    Attributes:
        WorkersAskChief: all workers call it in step, and get the chief's result.
        ChiefOnly: only the chief calls it; the script informs the other workers.
        WorkersAskMaster: each worker polls the master itself, and may see a request slightly before another worker.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Watches for requests to stop this process.

    Args:
        backend: receives the requests of the master.
        distributed: the workers.
        mode: how the workers agree.
        ask: a worker's own poll, as `Backend.wait_for_preemption`; for `PreemptMode.WorkersAskMaster`, since the
            backend polls on the chief only.
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
        backend.listen_for_stop(self._requested.set)

    def start(self) -> PreemptContext:
        """Start to watch, and return self; a second call has no effect."""
        if self._thread is None and self._ask is not None:
            self._thread = threading.Thread(target=self._watch, name="det-preemption", daemon=True)
            self._thread.start()
        return self

    @property
    def is_requested(self) -> bool:
        """Whether a stop was requested; does not acknowledge, and takes almost no time."""
        return self._requested.is_set()

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether to save a checkpoint and exit now; `PreemptMode` defines which ranks call it.

        Args:
            auto_ack: at the first True, report to the master that the process will exit soon and is to be resumed.
                Without this report an exit with code 0 means that the training is finished.

        Raises:
            RuntimeError: a rank other than the chief calls in `PreemptMode.ChiefOnly`.
        """
        if self._mode is PreemptMode.ChiefOnly and not self._distributed.is_chief:
            raise RuntimeError(
                f"Rank {self._distributed.rank} called `should_preempt`, which only the chief may in "
                "PreemptMode.ChiefOnly. Send the result from rank 0, or use PreemptMode.WorkersAskChief."
            )
        # The watching thread may set the event at any time. The chief reads it once and broadcasts the result: if each
        # worker read it, they could decide differently and wait for each other forever.
        requested = self._requested.is_set()
        if self._mode is PreemptMode.WorkersAskChief and self._distributed.size > 1:
            requested = self._distributed.broadcast(requested)
        if requested and auto_ack:
            self.acknowledge_preemption_signal()
        return requested

    def acknowledge_preemption_signal(self) -> None:
        """Report that the process will exit soon and is to be resumed; a second call has no effect."""
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
                # The master stores requests: a restarted master returns it to the next poll.
                logger.debug("The poll for preemption failed and is repeated: %s", error)
                self._closing.wait(_RETRY_S)


class StopSignals:
    """Turns SIGTERM and the first Ctrl-C into a request to stop, inside of its block.

    A second Ctrl-C raises KeyboardInterrupt at once. On other threads than the main thread, where Python delivers no
    signals, the block has no effect.
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
        # Python runs it on the main thread between two instructions, so it only stores the number.
        def handle(number: int, _: FrameType | None) -> None:
            if self.received is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.received = number

        return handle
