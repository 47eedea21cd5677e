"""Reports training and validation metrics, and handles a loss that is not finite."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from det_keras.errors import InvalidHP
from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run
from det_keras.keras.training.metric_values import plain_logs
from det_keras.keras.training.progress import Validation

logger = logging.getLogger(__name__)


class MetricsCallback(BoundaryCallback):
    """Reports Keras's running training metrics, once per epoch or periodically, and the results of validations.

    Args:
        period: batches between two reports of training metrics; None for once per epoch.
        on_nan: ``report`` logs a warning once and continues, ``stop`` raises InvalidHP.
    """

    def __init__(self, period: int | None, on_nan: str) -> None:
        self._period = period
        self._on_nan = on_nan
        self._warned = False
        self._last_batch = -1

    def next_batch(self, run: Run) -> int | None:
        if self._period is None:
            return None
        return (run.progress.position.batches // self._period + 1) * self._period

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        batches = run.progress.position.batches
        due = (
            boundary.at_epoch_end
            if self._period is None
            else batches % self._period == 0 or boundary.at_epoch_end
        )
        if not due or not boundary.logs or batches == self._last_batch:
            return
        self._last_batch = batches
        # Convert the logs only when a report is due: the values are tensors, and reading them waits for the step.
        metrics = plain_logs(boundary.logs)
        self._check_nan(metrics, run)
        run.core.train.report_metrics("training", run.progress.total_batches, {**run.counters(), **metrics})

    def on_restored(self, run: Run) -> None:
        # At a boundary metrics are reported before a checkpoint is taken, so this batch has already been reported.
        position = run.progress.position
        if self._period is not None and position.step > 0 and position.batches % self._period == 0:
            self._last_batch = position.batches

    def on_validation(self, run: Run, validation: Validation) -> None:
        metrics = {**run.counters(), **validation.metrics}
        run.core.train.report_metrics("validation", validation.batches, metrics)

    def _check_nan(self, metrics: Mapping[str, Any], run: Run) -> None:
        loss = metrics.get("loss")
        if loss is None or math.isfinite(loss):
            return
        if self._on_nan == "stop":
            raise InvalidHP(f"The loss is {loss} at batch {run.progress.total_batches}.")
        if not self._warned:
            self._warned = True
            logger.warning(
                "The loss is %s at batch %s; training continues. Pass `on_nan='stop'` to fit to end such trials.",
                loss,
                run.progress.total_batches,
            )
