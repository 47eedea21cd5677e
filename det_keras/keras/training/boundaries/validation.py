"""Runs the validations that the config requests in addition to those at epochs' ends."""

from __future__ import annotations

from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run
from det_keras.keras.training.progress import Validation


class ValidationCallback(BoundaryCallback):
    """Validates before the first batch, when `period` has passed without a validation, and at the end of training.

    The validation at the end runs only if the settings or a searcher request it. It runs before the checkpoint of the
    same batch. Otherwise a trial that is killed while it validates would resume from a checkpoint at which training is
    complete, and would never report the result.

    Args:
        period: maximum number of batches between two validations; None for no limit.
        initial: validate before the first batch of the trial.
    """

    def __init__(self, period: int | None, *, initial: bool) -> None:
        self._period = period
        self._initial = initial
        self._last_batch = 0

    def on_begin(self, run: Run) -> None:
        self._last_batch = run.progress.last_validation_batch
        if self._initial and run.progress.total_batches == 0 and not run.progress.is_resumed:
            run.validate()

    def next_batch(self, run: Run) -> int | None:
        return None if self._period is None else self._last_batch + self._period

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        since = run.progress.position.batches - self._last_batch
        by_period = self._period is not None and since >= self._period
        has_length = run.core.info is not None and run.settings.max_length is not None
        is_asked = run.settings.validates_at_end or has_length
        if by_period or (is_asked and since > 0 and run.progress.is_at_target):
            run.validate()

    def on_validation(self, run: Run, validation: Validation) -> None:
        self._last_batch = run.progress.position.batches
