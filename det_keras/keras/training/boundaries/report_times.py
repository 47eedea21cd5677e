"""At which boundaries the metrics of training are reported."""

from __future__ import annotations

from det_keras.keras.training.boundaries.base import Boundary, Run


class ReportTimes:
    """The batches at which something about training is reported: once per epoch, or periodically.

    Args:
        period: batches between two reports; None for once per epoch.
    """

    def __init__(self, period: int | None) -> None:
        self._period = period
        self._last_batch = -1

    def next_batch(self, run: Run) -> int | None:
        """Return the batch after which the next report is made; None for the end of the epoch."""
        if self._period is None:
            return None
        return (run.progress.position.batches // self._period + 1) * self._period

    def take(self, run: Run, boundary: Boundary) -> bool:
        """Return whether a report is due; it is made then, and no second one for the same batch."""
        batches = run.progress.position.batches
        due = (
            boundary.at_epoch_end
            if self._period is None
            else batches % self._period == 0 or boundary.at_epoch_end
        )
        if not due or not boundary.logs or batches == self._last_batch:
            return False
        self._last_batch = batches
        return True

    def restored(self, run: Run) -> None:
        """Note after a resume that the batch of the checkpoint was reported, if it was."""
        # At a boundary metrics are reported before a checkpoint is taken.
        position = run.progress.position
        if self._period is not None and position.step > 0 and position.batches % self._period == 0:
            self._last_batch = position.batches
