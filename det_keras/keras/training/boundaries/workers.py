"""Stops the workers together, and checks that their weights stay equal."""

from __future__ import annotations

from typing import Protocol

from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run

# Maximum number of batches before the workers act on a request to stop. Requests are exchanged with the gradients, and
# reading the result waits for the step on the device, so it is not read after every batch.
_STOP_BATCHES = 10


class Peers(Protocol):
    """The workers of a training."""

    def should_end(self) -> bool:
        """Return whether a callback on any worker had ended the training; the same on every worker."""

    def check_equal(self, checked_at: int) -> None:
        """Compare the weights of all workers.

        Args:
            checked_at: batches trained in the script at the previous comparison.
        """


class DivergenceCallback(BoundaryCallback):
    """Stops the workers together, and compares their weights after the first batch and then periodically.

    Args:
        peers: the workers.
        period: batches between two comparisons; 0 for none.
    """

    def __init__(self, peers: Peers, period: int) -> None:
        self._peers = peers
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
        if self._peers.should_end():
            run.stop()
        if not self._period:
            return
        if self._checked_at is None or run.progress.total_batches - self._checked_at >= self._period:
            self._peers.check_equal(
                self._checked_at if self._checked_at is not None else run.progress.total_batches - 1
            )
            self._checked_at = run.progress.total_batches
