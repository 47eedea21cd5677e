"""Calls the workload hooks of callbacks; a workload is the training between two reports or validations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from det_keras.keras.callbacks.callback import hooks
from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run


class WorkloadEnd(BoundaryCallback):
    """Ends a workload after every `unit` batches, before each validation, and at the end of training.

    Args:
        unit: maximum number of batches of a workload.
        listeners: bound ``on_train_workload_end`` hooks.
    """

    def __init__(self, unit: int, listeners: Sequence[Any]) -> None:
        self._unit = unit
        self._listeners = listeners
        self._start = 0

    def on_begin(self, run: Run) -> None:
        self._start = workload_start(run, self._unit)

    def next_batch(self, run: Run) -> int | None:
        return (run.progress.position.batches // self._unit + 1) * self._unit

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        if run.progress.position.batches % self._unit == 0 or run.is_ending:
            self._end(run)

    def on_validation_begin(self, run: Run) -> None:
        self._end(run)

    def on_end(self, run: Run) -> None:
        self._end(run)

    def _end(self, run: Run) -> None:
        if run.progress.position.batches == self._start:
            return
        self._start = run.progress.position.batches
        logs = run.progress.training_metrics()
        for listener in self._listeners:
            listener(run.progress.total_batches, dict(logs))


class WorkloadBegin(BoundaryCallback):
    """Begins the next workload, after all other boundary callbacks have acted at the boundary.

    Args:
        unit: maximum number of batches of a workload.
        listeners: bound ``on_train_workload_begin`` hooks.
    """

    def __init__(self, unit: int, listeners: Sequence[Any]) -> None:
        self._unit = unit
        self._listeners = listeners
        self._begun_at = -1

    def on_begin(self, run: Run) -> None:
        start = workload_start(run, self._unit)
        # If the checkpoint was taken before a workload began, its begin is not in the restored state of the callbacks:
        # `on_restored` then calls the hooks, after the state is restored.
        if not (run.progress.awaits_state and start == run.progress.position.batches):
            self._begin(run, start)

    def on_restored(self, run: Run) -> None:
        self._begin(run, workload_start(run, self._unit))

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        if not run.is_ending:
            self._begin(run, workload_start(run, self._unit))

    def _begin(self, run: Run, start: int) -> None:
        if start == self._begun_at:
            return
        self._begun_at = start
        requested = max(run.next_interruption(start, self._unit) - start, 0)
        for listener in self._listeners:
            listener(run.progress.batches_before + start, requested, {})


def workload_callbacks(
    unit: int, callbacks: Sequence[Any]
) -> tuple[list[BoundaryCallback], list[BoundaryCallback]]:
    """Return the boundary callbacks to put first and last in the list; both are empty if no callback has a hook.

    Args:
        unit: maximum number of batches of a workload.
        callbacks: the user's callbacks.
    """
    begins = hooks(callbacks, "on_train_workload_begin")
    ends = hooks(callbacks, "on_train_workload_end")
    if not begins and not ends:
        return [], []
    return [WorkloadEnd(unit, ends)], [WorkloadBegin(unit, begins)]


def workload_start(run: Run, unit: int) -> int:
    """Return the batch, counted over this `fit`, at which the workload of the next batch began."""
    batches = run.progress.position.batches
    return max(batches // unit * unit, min(run.progress.last_validation_batch, batches))
