"""Decides when a checkpoint is due."""

from __future__ import annotations

from collections.abc import Callable

from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run
from det_keras.keras.training.progress import Validation


class CheckpointCallback(BoundaryCallback):
    """Saves checkpoints after validations by policy, by period, at epochs' ends, and at the end of training.

    Args:
        policy: ``best``, ``all`` or ``none`` after validations; None for a checkpoint at each epoch's end.
        period: returns the maximum number of batches between two checkpoints; None for no limit.
    """

    def __init__(self, policy: str | None, period: Callable[[], int | None]) -> None:
        self._policy = policy
        self._period = period
        self._wanted = False
        self._is_prepared = False

    def next_batch(self, run: Run) -> int | None:
        if not self._is_prepared:
            return run.progress.position.batches + 1
        period = self._period()
        return None if period is None else run.progress.last_checkpoint_batch + period

    def on_validation(self, run: Run, validation: Validation) -> None:
        if self._policy == "all" or (self._policy == "best" and validation.is_best):
            self._wanted = True

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        if not self._is_prepared:
            # After the first batch every variable exists.
            self._is_prepared = True
            run.prepare_checkpoints()
        by_epoch = self._policy is None and boundary.at_epoch_end
        since = run.progress.position.batches - run.progress.last_checkpoint_batch
        period = self._period()
        by_period = period is not None and since >= period
        if self._wanted or by_epoch or by_period:
            self._wanted = False
            run.save_checkpoint()

    def on_end(self, run: Run) -> None:
        run.save_checkpoint(final=True)
