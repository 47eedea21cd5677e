"""Reports of a training process: metrics, progress, status."""

from __future__ import annotations

import enum
import json
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from det_keras.core.backend.base import Backend
from det_keras.core.distributed import DistributedContext
from det_keras.core.tensorboard import EventFiles
from det_keras.protocol.metrics import PROFILER_GROUPS
from det_keras.protocol.values import finite

logger = logging.getLogger(__name__)


class EarlyExitReason(enum.Enum):
    """Why a script ends a trial early.

    Attributes:
        INVALID_HP: the hyperparameters are invalid.
        USER_REQUESTED_STOP: the script decided to stop.
    """

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


def _checked_steps(steps_completed: Any) -> int:
    try:
        # Integers of NumPy and TensorFlow too.
        steps = -1 if isinstance(steps_completed, bool) else operator.index(steps_completed)
    except TypeError:
        steps = -1
    if steps < 0:
        raise ValueError(
            f"`steps_completed` must be an integer of at least 0. Received: {steps_completed!r}."
        )
    return steps


def _checked_metrics(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"`metrics` must be values by name. Received a {type(metrics).__name__}: {metrics!r}."
        )
    checked = {}
    for name, value in metrics.items():
        plain = checked[str(name)] = finite(value)
        try:
            json.dumps(plain)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"Metric {str(name)!r} cannot be reported: it is a {type(value).__name__}, {repr(value)[:60]}. Report "
                "numbers, texts, lists or dicts of them."
            ) from error
    return checked


class TrainContext:
    """Reports metrics, progress and status; reports do not wait for the network.

    Args:
        backend: receives the reports.
        distributed: the workers.
        events: TensorBoard's files.
    """

    def __init__(
        self,
        backend: Backend,
        distributed: DistributedContext | None = None,
        events: EventFiles | None = None,
    ) -> None:
        self._backend = backend
        self._distributed = distributed or DistributedContext()
        self._events = events
        self._listener: Callable[[str, int, Mapping[str, Any]], None] | None = None
        self._told_of_batch_metrics = False

    @property
    def events(self) -> EventFiles | None:
        """TensorBoard's files; None if there is no directory for them."""
        return self._events

    def listen(self, listener: Callable[[str, int, Mapping[str, Any]], None]) -> None:
        """Set the listener that is called with group, batch count and metrics of every later report."""
        self._listener = listener

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, object]) -> None:
        """Record metrics of a group.

        Args:
            group: ``training``, ``validation`` or another name without a dot.
            steps_completed: batches trained so far, at least 0.
            metrics: JSON values, or scalars and arrays of NumPy and TensorFlow, by name. The same report twice counts
                once.

        Raises:
            ValueError: the group's name or the batch count is invalid.
            TypeError: a value cannot be reported; the message names the metric.
        """
        if not group or "." in group:
            raise ValueError(f"A metric group must have a name without a dot. Received: {group!r}.")
        if group in PROFILER_GROUPS:
            raise ValueError(f"The metric group {group!r} belongs to the profiler. Choose another name.")
        steps, values = _checked_steps(steps_completed), _checked_metrics(metrics)
        self._backend.report_metrics(group, steps, values)
        if self._listener is not None and self._distributed.is_chief:
            # As they are: a NaN is a number there.
            self._listener(group, steps, metrics)

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, object],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Record metrics of the group ``training``, as in `report_metrics`.

        Args:
            steps_completed: batches trained so far.
            metrics: by name.
            batch_metrics: metrics of single batches; they are not stored, and a warning is logged once.
        """
        if batch_metrics is not None and not self._told_of_batch_metrics:
            self._told_of_batch_metrics = True
            logger.warning(
                "`batch_metrics` are not stored. Report them as `metrics`, with their batch count."
            )
        self.report_metrics("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, object]) -> None:
        """Record metrics of the group ``validation``, as in `report_metrics`."""
        self.report_metrics("validation", steps_completed, metrics)

    def report_progress(self, progress: float) -> None:
        """Record how much of the training is done.

        Args:
            progress: 0 to 1.

        Raises:
            ValueError: `progress` is outside of 0 to 1.
        """
        if not 0.0 <= progress <= 1.0:
            raise ValueError(f"`progress` must be a fraction from 0 to 1. Received: {progress!r}.")
        self._backend.report_progress(float(progress))

    def set_status(self, status: str) -> None:
        """Record the activity of the process, such as ``training`` or ``validating``."""
        self._backend.set_status(status)

    def get_metadata(self) -> dict[str, Any]:
        """Return the values that `set_metadata` stored for this run; {} if there are none. On the chief only."""
        return self._backend.run_metadata()

    def set_metadata(self, metadata: Mapping[str, object]) -> dict[str, Any]:
        """Store JSON values for this run, replacing all earlier values, and return them. On the chief only."""
        return self._backend.set_run_metadata(metadata)

    def report_early_exit(self, reason: EarlyExitReason | str = EarlyExitReason.INVALID_HP) -> None:
        """Report to the searcher that the trial ends early; returns after the report has arrived."""
        self._backend.report_early_exit(EarlyExitReason(reason).value)

    def get_tensorboard_path(self) -> Path:
        """Return the directory for TensorBoard's event files of this worker, created if it does not exist."""
        assert self._events is not None
        self._events.path.mkdir(parents=True, exist_ok=True)
        return self._events.path

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
    ) -> None:
        """Copy TensorBoard's files to the checkpoint storage; `TensorboardMode.AUTO` does this automatically.

        Args:
            selector: returns whether to copy a file, by its path relative to `get_tensorboard_path`.
            mangler: returns the path in the storage, by the relative path and the rank.
        """
        if self._events is not None:
            self._events.upload(selector, mangler)

    def get_experiment_best_validation(self) -> float | None:
        """Return the experiment's best searcher metric so far; None if there is none. On the chief only.

        Raises:
            RuntimeError: this is not the chief.
        """
        if not self._distributed.is_chief:
            raise RuntimeError(
                f"Rank {self._distributed.rank} requested the best validation, which only the chief may. "
                "Request it on rank 0 and `distributed.broadcast` the result."
            )
        # Called on the chief only: the shared backend would wait for the other workers.
        return self._backend.unshared.best_validation()
