"""The training metrics that a loop reports: means over the batches of an epoch, read from the device at boundaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.keras.training.metric_values import plain_value

# Reports that may wait to be read. The oldest of so many was computed long ago, so that reading it waits for nothing.
_MOST_WAITING = 512


def result_of(name: str, metric: keras.metrics.Metric) -> dict[str, Any]:
    """Return the result of a metric as plain numbers by name; some metrics have several."""
    result = metric.result()
    if isinstance(result, Mapping):
        return {f"{name}_{part}": plain_value(value) for part, value in result.items()}
    return {name: plain_value(result)}


class ReportedValues:
    """Running means of the values that a loop reports, weighted by the rows of their batches."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Mapping[str, Any], float]] = []
        self._sums: dict[str, Any] = {}
        self._weights: dict[str, float] = {}
        self._metrics: dict[str, keras.metrics.Metric] = {}

    def add(self, values: Mapping[str, Any], weight: float) -> None:
        """Add the values of a batch; tensors are read later.

        Args:
            values: numbers or arrays by name, as tensors or not; or metrics, whose results are read at boundaries.
            weight: number of rows of the batch.
        """
        kept: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, keras.metrics.Metric):
                self._metrics[name] = value
            else:
                kept[name] = _kept(value)
        self._waiting.append((kept, weight))
        if len(self._waiting) >= _MOST_WAITING:
            self._read(_MOST_WAITING // 2)

    def results(self, add_up: Callable[[Sequence[Any]], list[Any]]) -> dict[str, Any]:
        """Return the metrics of the epoch so far by name, as plain numbers.

        Args:
            add_up: returns the sums of numbers over all workers.
        """
        self._read(len(self._waiting))
        names = list(self._sums)
        totals = add_up([*(self._sums[name] for name in names), *(self._weights[name] for name in names)])
        results = {
            name: plain_value(total / weight) if weight else float("nan")
            for name, total, weight in zip(names, totals[: len(names)], totals[len(names) :], strict=True)
        }
        return results | {
            name: value
            for key, metric in self._metrics.items()
            for name, value in result_of(key, metric).items()
        }

    def begin_epoch(self) -> None:
        """Forget what was reported so far."""
        self._waiting.clear()
        self._sums.clear()
        self._weights.clear()
        self._metrics.clear()

    def get_state(self, metrics: Sequence[Any]) -> dict[str, Any]:
        """Return the sums so far as JSON values; it waits for the values of the last batches.

        Args:
            metrics: all tracked metrics, among which are those that were reported.
        """
        self._read(len(self._waiting))
        sums = {name: np.asarray(total).tolist() for name, total in self._sums.items()}
        places = {
            name: index
            for name, metric in self._metrics.items()
            for index, known in enumerate(metrics)
            if known is metric
        }
        return {"sums": sums, "weights": dict(self._weights), "metrics": places}

    def load_state(self, state: Mapping[str, Any], metrics: Sequence[Any]) -> None:
        """Restore the state that `get_state` returned; arguments as there."""
        self.begin_epoch()
        self._sums = {name: np.asarray(total, np.float64) for name, total in state["sums"].items()}
        self._weights = dict(state["weights"])
        self._metrics = {name: metrics[index] for name, index in state["metrics"].items()}

    def add_up(self, states: Sequence[Mapping[str, Any]], *, is_empty: bool) -> None:
        """Have the sums of several workers.

        Args:
            states: what `get_state` returned on them.
            is_empty: have the names only, because another worker has the sums.
        """
        factor = 0.0 if is_empty else 1.0
        for name in self._sums:
            self._sums[name] = factor * sum(np.asarray(state["sums"][name]) for state in states)
            self._weights[name] = factor * sum(state["weights"][name] for state in states)

    def _read(self, count: int) -> None:
        """Add the oldest values to the sums, in the order in which they were reported."""
        oldest, self._waiting = self._waiting[:count], self._waiting[count:]
        for values, weight in oldest:
            for name, value in values.items():
                # All workers have the same names, also one without rows: it has run a row that does not count, whose
                # values may be NaN.
                product = np.asarray(value, np.float64) * weight if weight else 0.0
                self._sums[name] = self._sums.get(name, 0.0) + product
                self._weights[name] = self._weights.get(name, 0.0) + weight


def _kept(value: Any) -> Any:
    """Return a value as it is now, without waiting for the device: a variable may change before it is read."""
    if isinstance(value, keras.Variable):
        value = value.value
    if isinstance(value, tf.Variable):
        return tf.convert_to_tensor(value)
    return value.copy() if isinstance(value, np.ndarray) else value
