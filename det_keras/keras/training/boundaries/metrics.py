"""Reports training and validation metrics, and handles a loss that is not finite."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from det_keras.errors import InvalidHP
from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run
from det_keras.keras.training.boundaries.report_times import ReportTimes
from det_keras.keras.training.learning_rates import LearningRates
from det_keras.keras.training.metric_values import plain_logs
from det_keras.keras.training.progress import Validation

logger = logging.getLogger(__name__)


class MetricsCallback(BoundaryCallback):
    """Reports Keras's running training metrics, once per epoch or periodically, and the results of validations.

    The learning rate is reported with the training metrics, unless they have it. The history stays as it is: in plain
    Keras it has the rate only with a callback that changes it.

    Args:
        period: batches between two reports of training metrics; None for once per epoch.
        on_nan: ``report`` logs a warning once and continues, ``stop`` raises InvalidHP.
        optimizers: returns the optimizers whose learning rates are reported.
    """

    def __init__(
        self, period: int | None, on_nan: str, optimizers: Callable[[], Iterable[Any]] = tuple
    ) -> None:
        self._optimizers = optimizers
        self._rates = LearningRates()
        self._times = ReportTimes(period)
        self._on_nan = on_nan
        self._warned = False

    def next_batch(self, run: Run) -> int | None:
        return self._times.next_batch(run)

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        if not self._times.take(run, boundary):
            return
        # Convert the logs only when a report is due: the values are tensors, and reading them waits for the step.
        metrics = plain_logs(boundary.logs)
        self._check_nan(metrics, run)
        reported = {**run.counters(), **self._rates.read(self._optimizers()), **metrics}
        run.core.train.report_metrics("training", run.progress.total_batches, reported)

    def on_restored(self, run: Run) -> None:
        self._times.restored(run)

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
