"""Decides when a checkpoint is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_keras.keras.engine.injected.base import Boundary, InjectedCallback, Validation

if TYPE_CHECKING:
    from det_keras.keras.engine.fit import FitRun

__all__ = ["CheckpointCallback"]


class CheckpointCallback(InjectedCallback):
    """Asks for checkpoints after validations by policy, by period, at epochs' ends, and at the end.

    Args:
        policy: ``best``, ``all`` or ``none`` after validations; None for each epoch's end.
        period: longest stretch without a checkpoint, in batches; None for no limit.
    """

    def __init__(self, policy: str | None, period: int | None) -> None:
        self._policy = policy
        self._period = period
        self._wanted = False
        self._is_prepared = False

    def next_batch(self, run: FitRun) -> int | None:
        if not self._is_prepared:
            return run.position.batches + 1
        return None if self._period is None else run.last_checkpoint_batch + self._period

    def on_validation(self, run: FitRun, validation: Validation) -> None:
        if self._policy == "all" or (self._policy == "best" and validation.is_best):
            self._wanted = True

    def on_boundary(self, run: FitRun, boundary: Boundary) -> None:
        if not self._is_prepared:
            # After the first batch, when every variable exists.
            self._is_prepared = True
            run.prepare_checkpoints()
        by_epoch = self._policy is None and boundary.at_epoch_end
        by_period = (
            self._period is not None and run.position.batches - run.last_checkpoint_batch >= self._period
        )
        if self._wanted or by_epoch or by_period:
            self._wanted = False
            run.save_checkpoint()

    def on_end(self, run: FitRun) -> None:
        run.save_checkpoint(final=True)
