"""The replica of a worker that has its own statistics and metrics, which are put together when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.distributed.exchange import sum_over_workers
from det_keras.keras.distributed.replica import Replica, Step, seed_variables
from det_keras.keras.distributed.shared_step import Share, SharedStep

#: Separates the random streams of ranks; it is odd, so that up to 2**32 ranks have different streams.
RANK_STRIDE = 0x9E3779B1


class WorkerReplica(Replica):
    """Runs each step once, on this worker's rows.

    The rows are counted to weight gradients, the effects of a step without rows are undone, and metrics are computed
    from the states of all workers. Arguments as for `Replica`.
    """

    def __init__(
        self, model: Any, distributed: DistributedContext, step: SharedStep, *, may_lack_rows: bool = True
    ) -> None:
        super().__init__(model, distributed, step, may_lack_rows=may_lack_rows)
        self._latest: dict[str, Any] = {}
        self._trained = tf.Variable(0, dtype=tf.int64, trainable=False)

    def spread_seeds(self) -> None:
        """Change the seed generators, which have the chief's state, to this rank's own streams.

        Keras derives a random number from (seed, number of the draw), so that the dropout masks of a rank are a
        function of the training's seed, the rank and the step.
        """
        spread_seeds(seed_variables(self._model), self._distributed.rank)

    def averages(self) -> list[np.ndarray[Any, Any]]:
        """Return the moving statistics, averaged over workers and weighted by the rows that they trained on."""
        own = [np.asarray(variable.value) for variable in self.statistics]
        return average_over_workers(own, int(self._trained), self._distributed)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Assign the averaged moving statistics inside the block, and restore each worker's own after it."""
        own = [np.array(variable.value) for variable in self.statistics]
        for variable, value in zip(self.statistics, self.averages(), strict=True):
            variable.assign(value)
        try:
            yield
        finally:
            for variable, value in zip(self.statistics, own, strict=True):
                variable.assign(value)

    @property
    def _own_variables(self) -> list[Any]:
        """Every variable that may differ between workers: statistics, random streams, metrics."""
        return [*self.statistics, *seed_variables(self._model), *self._model.metrics_variables]

    def get_state(self) -> dict[str, Any]:
        """Return the state that only this worker has."""
        return {
            "trained": int(self._trained),
            "values": [np.asarray(variable.value) for variable in self._own_variables],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `get_state` returned on a worker of the same rank."""
        self._trained.assign(state["trained"])
        for variable, value in zip(self._own_variables, state["values"], strict=True):
            variable.assign(value)

    def begin_anew(self) -> None:
        """Begin from the chief's state when the number of workers has changed; metrics continue on the chief only."""
        self._trained.assign(0)
        if not self._distributed.is_chief:
            for metric in self._model.metrics:
                metric.reset_state()
        self.spread_seeds()

    def sum_metrics(self) -> list[np.ndarray[Any, Any]]:
        """Return the states of all metrics, summed over workers, in the order of ``metrics_variables``.

        The workers' requests are exchanged in the same call and recorded in the step.
        """
        values = [variable.value.read_value() for variable in self._model.metrics_variables]
        is_ending = tf.maximum(tf.cast(self._model.stop_training, tf.float32), self._shared.end)
        *sums, endings = sum_over_workers([*values, is_ending], name="metric_states")
        self._shared.is_ending_epoch = float(endings) > 0
        return [np.asarray(total) for total in sums]

    def _step(self, original: Step, *, counts: bool) -> Step:
        def step(packed: Any) -> Any:
            data, counted = packed
            # The number of rows of this worker and, if the data provides it, of all workers.
            rows, all_rows = (counted[0], counted[1]) if counted.shape.rank else (counted, None)
            may_change = [*self.statistics, *self._model.metrics_variables]
            discarded = may_change if self._may_lack_rows else []
            before = [variable.value.read_value() for variable in discarded]
            with self._shared.of(Share(rows, all_rows)):
                logs = original(data)
                numbers = self._numbers(logs, trains=counts)
                if numbers:
                    fraction = self._shared.learn_fraction()
                    sent = [
                        tf.math.multiply_no_nan(value, tf.cast(fraction, value.dtype))
                        for value in numbers.values()
                    ]
                    logs = {**logs, **dict(zip(numbers, self._shared.sum(sent, "logs"), strict=True))}
            # A worker without rows of this batch has run a row that belongs to another worker: undo its effects.
            for variable, value in zip(discarded, before, strict=True):
                variable.assign(tf.where(rows > 0, variable.value, value))
            if counts and self.statistics:
                self._trained.assign_add(rows)
            return logs

        return step

    def _result(self, original: Callable[[], Any]) -> Callable[[], Any]:
        def result() -> Any:
            if tf.inside_function():
                return original()
            variables = self._model.metrics_variables
            own = [variable.value.read_value() for variable in variables]
            for variable, value in zip(variables, self.sum_metrics(), strict=True):
                variable.assign(value)
            logs = keras.tree.map_structure(
                lambda value: tf.identity(value) if tf.is_tensor(value) else value, original()
            )
            self._latest = super(WorkerReplica, self)._logged_results(trains=self._trains)
            for variable, value in zip(variables, own, strict=True):
                variable.assign(value)
            return logs

        return result

    def _logged_results(self, *, trains: bool) -> dict[str, Any]:
        """Return the results as of the last exchange of states."""
        return self._latest


def spread_seeds(variables: Iterable[Any], rank: int) -> None:
    """Change the states of seed generators, which are those of the chief, to the streams of a rank."""
    for variable in variables:
        seed, drawn = np.asarray(variable.value).tolist()
        variable.assign(np.array([(seed + rank * RANK_STRIDE) % 2**32, drawn], np.uint32))


def average_over_workers(
    own: Sequence[np.ndarray[Any, Any]], rows: int, workers: DistributedContext
) -> list[np.ndarray[Any, Any]]:
    """Return the averages of arrays over all workers, weighted by rows; all workers must make this call.

    Args:
        own: this worker's arrays; the same number on all workers.
        rows: number of rows from which this worker's arrays come.
        workers: the workers.
    """
    # The workers have the same model, so all of them take part in the exchange, or none.
    if not own:
        return []
    gathered = workers.allgather((rows, list(own)))
    weights = np.array([max(rows, 0) for rows, _ in gathered], np.float64)
    if weights.sum() == 0:
        weights += 1.0
    return [_average([values[index] for _, values in gathered], weights) for index in range(len(own))]


def _average(values: list[Any], weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if all(np.array_equal(values[0], other) for other in values[1:]):
        # The mean of equal values may differ from the values in the last digit.
        result: np.ndarray[Any, Any] = values[0]
        return result
    mean: np.ndarray[Any, Any] = np.average(np.stack(values).astype(np.float64), axis=0, weights=weights)
    return mean.astype(values[0].dtype)
