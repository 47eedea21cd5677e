"""The model of one worker: how its steps run on a share of a batch, and what all workers have in common.

Keras's own steps run unchanged. What is added to them differs between the two kinds of replicas.
"""

from __future__ import annotations

import abc
import functools
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from det_keras.keras.private_api.models import all_layers, own_trainable_variables, seed_generators
from det_keras.keras.private_api.steps import RESULTS_OR_LOGS

logger = logging.getLogger(__name__)

_HOOKS = ("train_step", "test_step", "evaluate", "get_metrics_result", RESULTS_OR_LOGS)

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
        # What metrics returned while a step was traced, with what returns it anew; and by the name in the logs of the
        # steps of a training and of a test.
        self._results: list[tuple[Any, Callable[[], Any]]] = []
        self._logged_by: dict[bool, dict[str, Callable[[], Any]]] = {True: {}, False: {}}
        self._trains = True

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the model's steps as those of a replica inside the block; their data must be (batch, rows) pairs."""
        model = self._model
        check_metrics(model.metrics)
        original = {name: getattr(model, name) for name in _HOOKS}
        was_compiled = model.jit_compile
        if was_compiled is True:
            logger.warning("`jit_compile` is off on several workers: the exchange cannot run inside XLA.")
        model.jit_compile = False
        result = original["get_metrics_result"]
        model.train_step = self._step(original["train_step"], counts=True)
        model.test_step = self._step(original["test_step"], counts=False)
        model.evaluate = self._evaluation(original["evaluate"])
        model.get_metrics_result = self._result(result)
        setattr(model, RESULTS_OR_LOGS, self._results_or_logs(original[RESULTS_OR_LOGS]))
        self._forget_functions()
        try:
            with shared_losses(self._shared), self._weighing_the_loss(), self._noting_results():
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

    def metrics(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Return what a step logged, with the running metrics over all workers."""
        found = getattr(self._model, RESULTS_OR_LOGS)(dict(logs))
        return {name: float(value) for name, value in found.items()}

    @abc.abstractmethod
    def averages(self) -> list[np.ndarray[Any, Any]]:
        """Return the moving statistics of all workers, in the order of `statistics`."""

    @abc.abstractmethod
    def averaged(self) -> AbstractContextManager[None]:
        """Assign the statistics of all workers inside the block."""

    @property
    def statistics(self) -> list[Any]:
        """The model's floating-point variables besides its weights, such as moving means."""
        return moving_statistics(self._model)

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
        """Compare the trainable variables of all workers; see `check_equal`."""
        check_equal(self._model.trainable_variables, batches, checked_at)

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
    def _step(self, original: Step, *, counts: bool) -> Step:
        """Return the replacement of a step.

        Args:
            original: the model's own step.
            counts: whether the step trains.
        """

    @abc.abstractmethod
    def _result(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Return the replacement of the model's `get_metrics_result`."""

    def _numbers(self, logs: Any, *, trains: bool) -> dict[str, tf.Tensor]:
        """Return what a step logs besides results of metrics, as a step of one's own does: numbers, by name.

        The results are noted, also those that have another name in the logs.

        Args:
            logs: what the step returned.
            trains: whether it is a step of a training.
        """
        if not isinstance(logs, dict):
            return {}
        numbers = {}
        for name, value in logs.items():
            again = next((again for result, again in self._results if result is value), None)
            if again is not None:
                self._logged_by[trains][name] = again
            elif keras.ops.is_tensor(value) and not value.shape.rank:
                numbers[name] = tf.convert_to_tensor(value)
        self._results.clear()
        return {name: value for name, value in numbers.items() if value.dtype.is_floating}

    def _logged_results(self, *, trains: bool) -> dict[str, Any]:
        """Return the results of metrics that a step logs, from their states over all workers."""
        return {name: tf.identity(result()) for name, result in self._logged_by[trains].items()}

    def _results_or_logs(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def results_or_logs(logs: Any) -> Any:
            found = original(logs)
            if found is not logs or not isinstance(logs, dict):
                return found
            results = self._logged_results(trains=self._trains)
            return {name: results.get(name, value) for name, value in logs.items()}

        return results_or_logs

    def _evaluation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(*arguments: Any, **options: Any) -> Any:
            before, self._trains = self._trains, False
            try:
                return original(*arguments, **options)
            finally:
                self._trains = before

        return evaluate

    @contextmanager
    def _noting_results(self) -> Iterator[None]:
        """Note inside the block what each metric returns."""
        metrics = list(self._model.metrics)

        def noting(original: Callable[[], Any]) -> Callable[[], Any]:
            def result() -> Any:
                found = original()
                if isinstance(found, dict):
                    self._results += [
                        (part, functools.partial(_part_of, original, name)) for name, part in found.items()
                    ]
                else:
                    self._results.append((found, original))
                return found

            return result

        for metric in metrics:
            metric.result = noting(metric.result)
        try:
            yield
        finally:
            for metric in metrics:
                vars(metric).pop("result", None)
            self._results.clear()

    def _forget_functions(self) -> None:
        self._model.train_function = self._model.test_function = self._model.predict_function = None


def _part_of(result: Callable[[], Any], name: str) -> Any:
    return result()[name]


def check_equal(variables: Sequence[Any], batches: int, checked_at: int) -> None:
    """Compare variables of all workers; every worker must make the same call.

    Args:
        variables: variables that have to be equal.
        batches: batches trained in the script so far, for the error message.
        checked_at: the same number at the previous comparison.

    Raises:
        DivergenceError: they differ; it names the first variable, the ranks and the steps.
    """
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


def moving_statistics(model: Any) -> list[Any]:
    """Return the floating-point variables of a model or layer besides its weights, such as moving means."""
    layers = all_layers(model)
    # Frozen weights are excluded: they are the same on all workers.
    weights = {id(variable) for layer in layers for variable in own_trainable_variables(layer)}
    others = weights | {id(variable) for variable in seed_variables(model)}
    return [
        variable
        for variable in model.non_trainable_variables
        if id(variable) not in others and tf.as_dtype(variable.dtype).is_floating
    ]


def check_metrics(metrics: Iterable[Any]) -> None:
    """Check that the state of every metric is a sum.

    Raises:
        ValueError: the state of a metric does not begin at zero, as that of a minimum would not; adding the states
            of workers would count its beginning several times.
    """
    # Keras stores the metrics of `compile` inside one metric.
    for metric in [part for known in metrics for part in getattr(known, "metrics", [known])]:
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
