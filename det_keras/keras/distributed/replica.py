"""The replica of the model on one worker: steps on its rows, metrics and statistics over all workers.

Keras's own steps run unchanged on this worker's rows. In addition, the rows are counted to weight gradients, the
effects of a step without rows are undone, and metrics are computed from the states of all workers.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.errors import DivergenceError
from det_keras.keras.distributed.exchange import allgather_rows, broadcast, sum_over_workers
from det_keras.keras.distributed.gradients import SharedStep
from det_keras.keras.distributed.loss import shared_losses
from det_keras.keras.private_api import all_layers, own_trainable_variables, seed_generators

__all__ = ["Replica", "check_metrics", "seed_variables"]

logger = logging.getLogger(__name__)

_HOOKS = ("train_step", "test_step", "get_metrics_result")
# Separates the random streams of ranks; it is odd, so that up to 2**32 ranks have different streams.
_RANK_STRIDE = 0x9E3779B1


class Replica:
    """The model of one worker.

    Args:
        model: the compiled model, with all its variables built.
        distributed: the workers.
        step: receives the numbers of rows of each step.
        may_lack_rows: a worker may have no row of some batch; the effects of its step are then undone.
    """

    def __init__(
        self, model: Any, distributed: DistributedContext, step: SharedStep, *, may_lack_rows: bool = True
    ) -> None:
        self._may_lack_rows = may_lack_rows
        self._model = model
        self._distributed = distributed
        self._shared = step
        self._trained = tf.Variable(0, dtype=tf.int64, trainable=False)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the model's steps as those of a replica inside the block; their data must be (batch, rows) pairs."""
        model = self._model
        check_metrics(model)
        original = {name: getattr(model, name) for name in _HOOKS}
        was_compiled = model.jit_compile
        if was_compiled is True:
            logger.warning("`jit_compile` is off on several workers: the exchange cannot run inside XLA.")
        model.jit_compile = False
        result = original["get_metrics_result"]
        model.train_step = self._step(original["train_step"], result, counts=True)
        model.test_step = self._step(original["test_step"], result, counts=False)
        model.get_metrics_result = self._result(result)
        self._forget_functions()
        try:
            with shared_losses(self._shared), self._weighing_the_loss():
                yield
        finally:
            for name in _HOOKS:
                vars(model).pop(name, None)
            model.jit_compile = was_compiled
            self._forget_functions()

    def adopt_initial_state(self, variables: list[Any]) -> None:
        """Assign the chief's values on every worker, and give each rank its own random streams."""
        for index, variable in enumerate(variables):
            variable.assign(broadcast(variable.value, name=f"initial.{index}"))
        self.spread_seeds()

    def spread_seeds(self) -> None:
        """Change the seed generators, which have the chief's state, to this rank's own streams.

        Keras derives a random number from (seed, number of the draw), so that the dropout masks of a rank are a
        function of the training's seed, the rank and the step.
        """
        rank = self._distributed.rank
        for variable in seed_variables(self._model):
            seed, drawn = np.asarray(variable.value).tolist()
            variable.assign(np.array([(seed + rank * _RANK_STRIDE) % 2**32, drawn], np.uint32))

    def metrics(self) -> dict[str, float]:
        """Return the running metrics over all workers."""
        return {name: float(value) for name, value in self._model.get_metrics_result().items()}

    def averages(self) -> list[np.ndarray[Any, Any]]:
        """Return the moving statistics, averaged over workers and weighted by the rows that they trained on."""
        own = [np.asarray(variable.value) for variable in self.statistics]
        # The workers have the same model, so all of them take part in the exchange, or none.
        if not own:
            return []
        gathered = self._distributed.allgather((int(self._trained), own))
        weights = np.array([max(rows, 0) for rows, _ in gathered], np.float64)
        if weights.sum() == 0:
            weights += 1.0
        return [_average([values[index] for _, values in gathered], weights) for index in range(len(own))]

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
    def statistics(self) -> list[Any]:
        """The model's floating-point variables besides its weights, such as moving means."""
        layers = all_layers(self._model)
        # Frozen weights are excluded: they are the same on all workers.
        weights = {id(variable) for layer in layers for variable in own_trainable_variables(layer)}
        others = weights | {id(variable) for variable in seed_variables(self._model)}
        return [
            variable
            for variable in self._model.non_trainable_variables
            if id(variable) not in others and tf.as_dtype(variable.dtype).is_floating
        ]

    @property
    def own_variables(self) -> list[Any]:
        """Every variable that may differ between workers: statistics, random streams, metrics."""
        return [*self.statistics, *seed_variables(self._model), *self._model.metrics_variables]

    def get_state(self) -> dict[str, Any]:
        """Return the state that only this worker has."""
        return {
            "trained": int(self._trained),
            "values": [np.asarray(variable.value) for variable in self.own_variables],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `get_state` returned on a worker of the same rank."""
        self._trained.assign(state["trained"])
        for variable, value in zip(self.own_variables, state["values"], strict=True):
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

    def check_equal(self, batches: int, checked_at: int) -> None:
        """Compare the trainable variables of all workers.

        Args:
            batches: batches trained in the script so far, for the error message.
            checked_at: the same number at the previous comparison.

        Raises:
            DivergenceError: they differ; it names the first variable, the ranks and the steps.
        """
        variables = self._model.trainable_variables
        sums = tf.constant([[_checksum(variable) for variable in variables]], tf.int64)
        # Every worker compares the same gathered rows, so all of them raise, or none: no worker waits for another.
        gathered = allgather_rows(sums, name="checksums").numpy().tolist()
        for index, variable in enumerate(variables):
            different = [rank for rank, other in enumerate(gathered) if other[index] != gathered[0][index]]
            if different:
                raise DivergenceError(
                    f"The weights of the workers differ: `{variable.path}` of rank "
                    f"{', '.join(map(str, different))} differs from that of rank 0. It happened between batch "
                    f"{checked_at} and batch {batches}. Is every optimizer wrapped with `context.wrap_optimizer`, and "
                    "does nothing change weights on a single rank?"
                )

    @contextmanager
    def _weighing_the_loss(self) -> Iterator[None]:
        """Multiply the loss by this worker's share of the rows, which saves a pass over the gradients.

        It is done only if Keras's own step asks the optimizer to scale the loss, if 16-bit floats would not lose
        digits, and if no worker runs a row that is not counted, whose result may be NaN.
        """
        optimizer = self._model.optimizer
        is_plain = (
            type(self._model).train_step is keras.Model.train_step
            and isinstance(optimizer, keras.optimizers.Optimizer)
            and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
            and "scale_loss" not in vars(optimizer)
        )
        if not is_plain or self._may_lack_rows:
            yield
            return
        original, step = optimizer.scale_loss, self._shared

        def scale_loss(loss: Any) -> Any:
            scaled, share = original(loss), step.share
            if share is None:
                return scaled
            step.is_weighted = True
            return scaled * tf.cast(share, scaled.dtype)

        optimizer.scale_loss = scale_loss
        try:
            yield
        finally:
            del optimizer.scale_loss

    def _step(
        self, original: Callable[[Any], Any], own_result: Callable[[], dict[str, Any]], *, counts: bool
    ) -> Callable[[Any], Any]:
        def step(packed: Any) -> Any:
            data, counted = packed
            # The number of rows of this worker and, if the data provides it, of all workers.
            rows, all_rows = (counted[0], counted[1]) if counted.shape.rank else (counted, None)
            may_change = [*self.statistics, *self._model.metrics_variables]
            discarded = may_change if self._may_lack_rows else []
            before = [variable.value.read_value() for variable in discarded]
            with self._shared.of(rows, all_rows):
                logs = self._shared_logs(original(data), own_result)
            # A worker without rows of this batch has run a row that belongs to another worker: undo its effects.
            for variable, value in zip(discarded, before, strict=True):
                variable.assign(tf.where(rows > 0, variable.value, value))
            if counts and self.statistics:
                self._trained.assign_add(rows)
            return logs

        return step

    def _shared_logs(self, logs: Any, own_result: Callable[[], dict[str, Any]]) -> Any:
        """Return the logs of a step; those that are no results of metrics, as of an own `train_step`, are averaged.

        Args:
            logs: what this worker's step returned.
            own_result: returns the results of metrics on this worker. Those of all workers are computed when they are
                asked for.
        """
        if not isinstance(logs, dict):
            return logs
        names = set(own_result())
        own = {
            name: tf.convert_to_tensor(value)
            for name, value in logs.items()
            if name not in names and keras.ops.is_tensor(value) and not value.shape.rank
        }
        own = {name: value for name, value in own.items() if value.dtype.is_floating}
        if not own:
            return logs
        share = self._shared.learn_share()
        sent = [tf.math.multiply_no_nan(value, tf.cast(share, value.dtype)) for value in own.values()]
        return {
            **logs,
            **dict(zip(own, sum_over_workers(sent, name=self._shared.name_of("logs")), strict=True)),
        }

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
            for variable, value in zip(variables, own, strict=True):
                variable.assign(value)
            return logs

        return result

    def _forget_functions(self) -> None:
        self._model.train_function = self._model.test_function = self._model.predict_function = None


def check_metrics(model: Any) -> None:
    """Check that the state of every metric is a sum.

    Raises:
        ValueError: the state of a metric does not begin at zero, as that of a minimum would not; adding the states
            of workers would count its beginning several times.
    """
    # Keras stores the metrics of `compile` inside one metric.
    for metric in [part for known in model.metrics for part in getattr(known, "metrics", [known])]:
        kept = [variable.value.read_value() for variable in metric.variables]
        metric.reset_state()
        is_sum = all(not np.any(np.asarray(variable.value)) for variable in metric.variables)
        for variable, value in zip(metric.variables, kept, strict=True):
            variable.assign(value)
        if not is_sum:
            raise ValueError(
                f"The metric `{metric.name}` ({type(metric).__name__}) cannot be summed over workers: its state does "
                "not begin at zero. Use a metric that adds up, or train with one worker."
            )


def seed_variables(model: Any) -> list[Any]:
    """Return the states of the model's seed generators, in a fixed order."""
    found: dict[int, Any] = {}
    for layer in all_layers(model):
        for generator in seed_generators(layer):
            found.setdefault(id(generator.state), generator.state)
    return list(found.values())


def _average(values: list[Any], weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if all(np.array_equal(values[0], other) for other in values[1:]):
        # The mean of equal values may differ from the values in the last digit.
        result: np.ndarray[Any, Any] = values[0]
        return result
    mean: np.ndarray[Any, Any] = np.average(np.stack(values).astype(np.float64), axis=0, weights=weights)
    return mean.astype(values[0].dtype)


def _checksum(variable: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(np.asarray(variable.value)).view(np.uint8).reshape(-1).data)
