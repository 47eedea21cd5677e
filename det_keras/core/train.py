"""What a training process tells of itself: metrics, progress, status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_keras.core.backend.base import Backend

__all__ = ["TrainContext"]

_PROFILER_GROUPS = frozenset({"gpu", "cpu", "memory", "disk", "network"})


class TrainContext:
    """Reports metrics, progress and status; no call waits for the network.

    Args:
        backend: whom to tell.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics of a group.

        Args:
            group: ``training``, ``validation`` or a name of your own without a dot.
            steps_completed: batches trained so far, at least 0.
            metrics: JSON values or NumPy scalars by name. The same report twice counts once.

        Raises:
            ValueError: the group's name or the batch count is not usable.
        """
        if not group or "." in group:
            raise ValueError(f"A metric group needs a name without a dot. Received: {group!r}.")
        if group in _PROFILER_GROUPS:
            raise ValueError(f"The metric group {group!r} belongs to the profiler. Choose another name.")
        if isinstance(steps_completed, bool) or not isinstance(steps_completed, int) or steps_completed < 0:
            raise ValueError(
                f"`steps_completed` must be an integer of at least 0. Received: {steps_completed!r}."
            )
        self._backend.report_metrics(group, steps_completed, metrics)

    def report_training_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics of the group ``training``, as in `report_metrics`."""
        self.report_metrics("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics of the group ``validation``, as in `report_metrics`."""
        self.report_metrics("validation", steps_completed, metrics)

    def report_progress(self, progress: float) -> None:
        """Record how much of the training is done.

        Args:
            progress: 0 to 1.

        Raises:
            ValueError: it is outside of 0 to 1.
        """
        if not 0.0 <= progress <= 1.0:
            raise ValueError(f"Progress is a fraction from 0 to 1. Received: {progress!r}.")
        self._backend.report_progress(float(progress))

    def set_status(self, status: str) -> None:
        """Record what the process is doing, such as ``training`` or ``validating``."""
        self._backend.set_status(status)

    def get_experiment_best_validation(self) -> float | None:
        """Return the best searcher metric of the experiment so far, None while there is none."""
        return self._backend.best_validation()
