"""Validates between epochs' ends, as the config asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_keras.keras.callbacks.base import Boundary, InjectedCallback, Validation

if TYPE_CHECKING:
    from det_keras.keras.fit import FitRun

__all__ = ["ValidationCallback"]


class ValidationCallback(InjectedCallback):
    """Validates before the first batch, wherever training went too long without a validation, and at its end.

    At the end only where the settings ask for it; before that batch's checkpoint, which then knows of it.

    Args:
        period: longest stretch without a validation, in batches; None for no limit.
        initial: validate before the first batch of the trial.
    """

    def __init__(self, period: int | None, *, initial: bool) -> None:
        self._period = period
        self._initial = initial
        self._last_batch = 0

    def on_begin(self, run: FitRun) -> None:
        self._last_batch = run.last_validation_batch
        if self._initial and run.total_batches == 0 and not run.was_restored:
            run.validate()

    def next_batch(self, run: FitRun) -> int | None:
        return None if self._period is None else self._last_batch + self._period

    def on_boundary(self, run: FitRun, boundary: Boundary) -> None:
        since = run.position.batches - self._last_batch
        by_period = self._period is not None and since >= self._period
        at_end = run.settings.validates_at_end and run.target.is_reached(run.position)
        if by_period or (at_end and since > 0):
            run.validate()

    def on_validation(self, run: FitRun, validation: Validation) -> None:
        self._last_batch = run.position.batches
