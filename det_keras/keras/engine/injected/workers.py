"""Stops the workers together, and checks that their weights stay equal."""

from __future__ import annotations

from det_keras.keras.engine.injected.base import Boundary, InjectedCallback
from det_keras.keras.engine.run import Run
from det_keras.keras.engine.team import Team

__all__ = ["DivergenceCallback"]

# Maximum number of batches before the workers act on a request to stop. Requests are exchanged with the gradients, and
# reading the result waits for the step on the device, so it is not read after every batch.
_STOP_BATCHES = 10


class DivergenceCallback(InjectedCallback):
    """Stops the workers together, and compares their weights after the first batch and then periodically.

    Args:
        team: the workers.
        period: batches between two comparisons; 0 for none.
    """

    def __init__(self, team: Team, period: int) -> None:
        self._team = team
        self._period = period
        self._checked_at: int | None = None

    def on_begin(self, run: Run) -> None:
        self._checked_at = None

    def next_batch(self, run: Run) -> int | None:
        batches = run.progress.position.batches
        # The workers can stop together only at boundaries.
        stop = (batches // _STOP_BATCHES + 1) * _STOP_BATCHES
        if not self._period:
            return stop
        if self._checked_at is None:
            return batches + 1
        return min(stop, self._checked_at - run.progress.batches_before + self._period)

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        if self._team.should_end():
            run.stop()
        if not self._period:
            return
        if self._checked_at is None or run.progress.total_batches - self._checked_at >= self._period:
            self._team.check_equal(
                self._checked_at if self._checked_at is not None else run.progress.total_batches - 1
            )
            self._checked_at = run.progress.total_batches
