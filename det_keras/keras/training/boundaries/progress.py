"""Reports how much of the training is done, and tells the profiler what its speed is measured with."""

from __future__ import annotations

import time

from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run
from det_keras.keras.training.pace import Pace

_REPORTS_PER_EPOCH = 20
_SHORTEST_S = 0.5


class ProgressCallback(BoundaryCallback):
    """Reports progress at most about 20 times per epoch and every half second, and at each epoch's end.

    Args:
        pace: measures the speed of the training.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._reported_at = 0.0

    def on_begin(self, run: Run) -> None:
        run.core.train.set_status("training")

    def next_batch(self, run: Run) -> int | None:
        steps = run.steps_per_epoch
        self._pace.steps_per_epoch, self._pace.batch_size = steps, run.global_batch_size
        return None if steps is None else run.progress.position.batches + max(steps // _REPORTS_PER_EPOCH, 1)

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        now = time.monotonic()
        if boundary.at_epoch_end or now - self._reported_at >= _SHORTEST_S:
            self._reported_at = now
            fraction = run.progress.target.fraction(run.progress.position, run.steps_per_epoch)
            run.core.train.report_progress(fraction)

    def on_end(self, run: Run) -> None:
        run.core.train.report_progress(1.0)
