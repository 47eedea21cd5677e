"""Handles requests to stop: saves a checkpoint at the next batch boundary, then exits."""

from __future__ import annotations

import logging
import signal
from typing import NoReturn

from det_keras.core.preempt import StopSignals
from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run

logger = logging.getLogger(__name__)


class PreemptionCallback(BoundaryCallback):
    """Saves a checkpoint and ends the process when the master, SIGTERM or Ctrl-C requests it.

    Args:
        signals: records the signals that this process receives while it trains.
    """

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        # This callback acts after the one that saves due checkpoints. Saving takes time, and a request that arrives
        # during it would otherwise wait for the next boundary.
        if not run.should_stop() or run.progress.is_at_target:
            return
        run.save_checkpoint()
        self._leave(run)

    def leave_at_end(self, run: Run) -> None:
        """End the process if a signal arrived too late for a boundary: in or after the last batch or validation.

        A request of the master stays in effect for the next `fit`. A signal arrives once and is recorded by this `fit`
        only, so it must be handled here.

        Args:
            run: the `fit`, after its end; all workers must make this call.

        Raises:
            SystemExit: a worker received a signal.
            KeyboardInterrupt: the signal was Ctrl-C, in a local run.
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
            "The trial continues from there when it is activated."
            if in_trial
            else "Start again to continue from there.",
        )
        run.core.preempt.acknowledge_preemption_signal()
        run.core.backend.flush()
        if self._signals.received == signal.SIGINT and not in_trial and run.core.distributed.size == 1:
            # As with plain Keras, the script may catch it, keep its model and go on.
            raise KeyboardInterrupt
        raise SystemExit(0 if in_trial else 128 + (self._signals.received or signal.SIGTERM))
