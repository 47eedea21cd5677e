"""Obeys requests to stop: a checkpoint at the next batch boundary, then the exit."""

from __future__ import annotations

import logging
import signal
from typing import NoReturn

from det_keras.core.preempt import StopSignals
from det_keras.keras.engine.injected.base import Boundary, InjectedCallback
from det_keras.keras.engine.run import Run

__all__ = ["PreemptionCallback"]

logger = logging.getLogger(__name__)


class PreemptionCallback(InjectedCallback):
    """Saves a checkpoint and leaves when the master, SIGTERM or Ctrl-C asks for it.

    Args:
        signals: what arrived at this process while it trains.
    """

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        # After a due checkpoint, not before: writing takes a while, and a request that arrives meanwhile
        # would otherwise wait for the next boundary.
        if not run.should_stop() or run.progress.is_at_target:
            return
        run.save_checkpoint()
        self._leave(run)

    def leave_at_end(self, run: Run) -> None:
        """Leave if a signal came too late for a boundary: in the last batch, in the last validation, or after it.

        What the master asks for stays asked for; a signal comes once, and the next `fit` would not know of it.
        """
        if not any(run.core.distributed.allgather(self._signals.received is not None)):
            return
        run.save_checkpoint(final=True)
        self._leave(run)

    def _leave(self, run: Run) -> NoReturn:
        run.wait_for_checkpoint()
        in_trial = run.core.info is not None
        logger.info(
            "Asked to stop: the state at batch %s is saved. %s",
            run.progress.total_batches,
            "The trial goes on from there when it is activated."
            if in_trial
            else "Start again to go on from there.",
        )
        run.core.preempt.acknowledge_preemption_signal()
        run.core.backend.flush()
        raise SystemExit(0 if in_trial else 128 + (self._signals.received or signal.SIGTERM))
