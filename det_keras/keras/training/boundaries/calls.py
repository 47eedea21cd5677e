"""Calls the boundary callbacks of a training, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run
from det_keras.keras.training.progress import Validation

_NEVER = 1 << 62


class BoundaryCalls:
    """The boundary callbacks of one training.

    Args:
        run: the training.
        callbacks: in the order in which they act.
    """

    def __init__(self, run: Run, callbacks: Sequence[BoundaryCallback]) -> None:
        self._run = run
        self._callbacks = callbacks
        self._next_batch = _NEVER

    @property
    def is_due(self) -> bool:
        """Whether a callback requested the newest batch."""
        return self._run.progress.position.batches >= self._next_batch

    def begin(self) -> None:
        """Begin the training; on a resume the position is set, and all other state is restored next."""
        for callback in self._callbacks:
            callback.on_begin(self._run)

    def restored(self) -> None:
        """Act after a checkpoint was restored."""
        for callback in self._callbacks:
            callback.on_restored(self._run)

    def plan(self) -> None:
        """Ask the callbacks after which batch they act."""
        requested = [callback.next_batch(self._run) for callback in self._callbacks]
        self._next_batch = min((batch for batch in requested if batch is not None), default=_NEVER)

    def visit(self, boundary: Boundary) -> None:
        """Let the callbacks act between two batches."""
        for callback in self._callbacks:
            callback.on_boundary(self._run, boundary)
        self.plan()

    def begin_validation(self) -> None:
        """Act before a validation."""
        for callback in self._callbacks:
            callback.on_validation_begin(self._run)

    def end_validation(self, validation: Validation) -> None:
        """Act after a validation."""
        for callback in self._callbacks:
            callback.on_validation(self._run, validation)
        # A checkpoint by policy is due at the next boundary, also inside of an epoch.
        self._next_batch = self._run.progress.position.batches

    def end(self) -> None:
        """Act after the training ended normally."""
        for callback in self._callbacks:
            callback.on_end(self._run)
