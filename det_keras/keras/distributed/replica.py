"""The model of one worker: how its steps run on a share of a batch, and what all workers have in common.

Keras's own steps run unchanged. What is added to them differs between the two kinds of replicas.
"""

from __future__ import annotations

import abc
import logging
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.errors import DivergenceError
from det_keras.keras.distributed.exchange import allgather_rows, broadcast
from det_keras.keras.distributed.loss import shared_losses
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.private_api import all_layers, own_trainable_variables, seed_generators

__all__ = ["Replica", "check_metrics", "seed_variables"]

logger = logging.getLogger(__name__)

_HOOKS = ("train_step", "test_step", "get_metrics_result")

Step = Callable[[Any], Any]


class Replica(abc.ABC):
    """The model of one worker.

    Args:
        model: the compiled model, with all its variables built.
        distributed: the workers.
        step: receives the numbers of rows of each step.
        may_lack_rows: a share may have no row of some batch; the effects of its step are then undone.
    """

    def __init__(
        self, model: Any, distributed: DistributedContext, step: SharedStep, *, may_lack_rows: bool = True
    ) -> None:
        self._may_lack_rows = may_lack_rows
        self._model = model
        self._distributed = distributed
        self._shared = step

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

    @abc.abstractmethod
    def spread_seeds(self) -> None:
        """Change the seed generators, which have the chief's state, to the random streams of this replica."""

    def metrics(self) -> dict[str, float]:
        """Return the running metrics over all workers."""
        return {name: float(value) for name, value in self._model.get_metrics_result().items()}

    @abc.abstractmethod
    def averages(self) -> list[np.ndarray[Any, Any]]:
        """Return the moving statistics of all workers, in the order of `statistics`."""

    @abc.abstractmethod
    def averaged(self) -> AbstractContextManager[None]:
        """Assign the statistics of all workers inside the block."""

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

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return the state that only this worker has: ``trained``, a number, and ``values``, a list of arrays."""

    @abc.abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `get_state` returned on a worker of the same rank."""

    @abc.abstractmethod
    def begin_anew(self) -> None:
        """Begin from the chief's state when the number of workers has changed."""

    @abc.abstractmethod
    def sum_metrics(self) -> list[np.ndarray[Any, Any]]:
        """Return the states of all metrics, summed over workers, in the order of ``metrics_variables``."""

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
            if share is None or share.fraction is None:
                return scaled
            share.is_weighted = True
            return scaled * tf.cast(share.fraction, scaled.dtype)

        optimizer.scale_loss = scale_loss
        try:
            yield
        finally:
            del optimizer.scale_loss

    @abc.abstractmethod
    def _step(self, original: Step, own_result: Callable[[], dict[str, Any]], *, counts: bool) -> Step:
        """Return the replacement of a step.

        Args:
            original: the model's own step.
            own_result: returns the results of the metrics from their states on this worker.
            counts: whether the step trains.
        """

    @abc.abstractmethod
    def _result(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Return the replacement of the model's `get_metrics_result`."""

    def _numbers(self, logs: Any, own_result: Callable[[], dict[str, Any]]) -> dict[str, tf.Tensor]:
        """Return what a step logs besides results of metrics, as an own `train_step` does: numbers, by name."""
        if not isinstance(logs, dict):
            return {}
        names = set(own_result())
        numbers = {
            name: tf.convert_to_tensor(value)
            for name, value in logs.items()
            if name not in names and keras.ops.is_tensor(value) and not value.shape.rank
        }
        return {name: value for name, value in numbers.items() if value.dtype.is_floating}

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


def _checksum(variable: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(np.asarray(variable.value)).view(np.uint8).reshape(-1).data)
