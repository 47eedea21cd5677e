"""`wrap_optimizer`: registers an optimizer with the context."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from det_keras.keras.distributed.gradients import GradientExchange
from det_keras.keras.gradient_norms import record_norms


class OptimizerRegistry:
    """The optimizers whose state is stored in checkpoints.

    Args:
        aggregation_frequency: number of batches whose gradients are aggregated for one update, at least 1.
        average: divide the aggregated gradients by `aggregation_frequency`.
        exchange: averages gradients over workers; None on one worker.
        records_norms: record the norms of gradients.
    """

    def __init__(
        self,
        aggregation_frequency: int = 1,
        *,
        average: bool = True,
        exchange: GradientExchange | None = None,
        records_norms: bool = False,
    ) -> None:
        self._exchange = exchange
        self._records_norms = records_norms
        self._aggregation_frequency = aggregation_frequency
        self._average = average
        self._wrapped: list[Any] = []

    def wrap(self, optimizer: Any) -> Any:
        """Register `optimizer` and return it; on one worker only the config's aggregation changes it.

        On several workers it averages gradients over all of them. It remains the same object with the same class, name
        and config, so that a saved model can be loaded without this package.

        Raises:
            ValueError: gradients are to be aggregated, and the optimizer has already run a step.
            TypeError: `optimizer` is not a Keras optimizer; for a string the message shows the object to pass.
        """
        if isinstance(optimizer, str):
            name = type(keras.optimizers.get(optimizer)).__name__ if _is_known(optimizer) else "Adam"
            raise TypeError(
                f"`wrap_optimizer` needs an optimizer object, not the string {optimizer!r}. "
                f"Pass `keras.optimizers.{name}()`."
            )
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                f"`wrap_optimizer` needs a keras.optimizers.Optimizer. Received a {type(optimizer).__name__}."
            )
        if all(optimizer is not known for known in self._wrapped):
            self._wrapped.append(optimizer)
            if self._aggregation_frequency > 1:
                self._aggregate(optimizer)
            if self._records_norms:
                # Before the exchange is installed, which then calls it with the gradients of all workers.
                record_norms(optimizer)
            if self._exchange is not None:
                self._exchange.install(optimizer)
        return optimizer

    def prepare(self, model: Any) -> None:
        """Make every optimizer that trains `model` on several workers exchange gradients.

        Raises:
            ValueError: an optimizer was not wrapped, or was wrapped by Horovod's own function.
        """
        if self._exchange is None:
            return
        inner = getattr(model.optimizer, "inner_optimizer", None)
        if inner is not None and self._exchange.is_installed(inner):
            # Keras wrapped it in a LossScaleOptimizer. The scaled gradients are exchanged: whether they are finite
            # decides whether the step is applied, and the decision must be the same on all workers.
            self._exchange.remove(inner)
            self._exchange.install(model.optimizer)
        optimizers = self.of_model(model)
        for optimizer in optimizers:
            if hasattr(optimizer, "_hvd_wrapped") or "horovod" in str(type(optimizer).__mro__):
                raise ValueError(
                    f"{type(optimizer).__name__} was wrapped by Horovod's own `DistributedOptimizer`, which does not "
                    "exchange gradients on Keras 3. Pass the plain optimizer to `context.wrap_optimizer(...)`."
                )
        wrapped = [optimizer for optimizer in optimizers if self._exchange.is_installed(optimizer)]
        has_own_step = type(model).train_step is not keras.Model.train_step
        if not self._exchange.is_installed(model.optimizer) and not (has_own_step and wrapped):
            raise ValueError(
                "On several workers the optimizer has to be wrapped, or each worker would train a model of its own: "
                f"`optimizer = context.wrap_optimizer(keras.optimizers.{type(model.optimizer).__name__}(...))` "
                "before `model.compile(optimizer=optimizer)`."
            )

    def _aggregate(self, optimizer: Any) -> None:
        """Make `optimizer` update once per `aggregation_frequency` batches, with Keras's own accumulation."""
        if optimizer.built:
            raise ValueError(
                "`optimizations.aggregation_frequency` needs a fresh optimizer, and this "
                f"{type(optimizer).__name__} has variables already. Wrap it before the model is built with it."
            )
        target = getattr(optimizer, "inner_optimizer", optimizer)
        target.gradient_accumulation_steps = self._aggregation_frequency
        if not self._average:
            _scale_gradients(target, float(self._aggregation_frequency))

    def of_model(self, model: Any) -> list[Any]:
        """Return the optimizers that train `model`: the compiled one, its attributes, and those wrapped for it."""
        found = [model.optimizer, *vars(model).values(), *self._wrapped]
        optimizers: list[Any] = []
        for value in found:
            if isinstance(value, keras.optimizers.Optimizer) and all(
                value is not known for known in optimizers
            ):
                optimizers.append(value)
        return optimizers

    def record(self, optimizers: Iterable[Any]) -> None:
        """Make optimizers record the norms of their gradients, if that was asked for; not all need to be wrapped."""
        for optimizer in optimizers if self._records_norms else ():
            record_norms(optimizer)

    @property
    def wrapped(self) -> list[Any]:
        """The optimizers that were wrapped for the current phase."""
        return list(self._wrapped)

    def check_wrapped(self, optimizer: Any) -> None:
        """Check that an optimizer exchanges gradients, if there are several workers.

        Raises:
            ValueError: it was not wrapped.
        """
        if self._exchange is not None and not self._exchange.is_installed(optimizer):
            raise ValueError(
                "On several workers the optimizer has to be wrapped, or each worker would train a model of its own: "
                f"`optimizer = context.wrap_optimizer(keras.optimizers.{type(optimizer).__name__}(...))`."
            )

    def forget(self) -> None:
        """Remove the optimizers that were wrapped so far, at the end of the phase for which they were wrapped."""
        self._wrapped.clear()


def _scale_gradients(optimizer: Any, factor: float) -> None:
    """Multiply every gradient by `factor`: Keras averages accumulated gradients, and the sum is needed."""
    apply = optimizer.apply

    def apply_scaled(grads: Any, *args: Any, **options: Any) -> Any:
        scaled = [None if gradient is None else gradient * factor for gradient in grads]
        return apply(scaled, *args, **options)

    optimizer.apply = apply_scaled


def _is_known(name: str) -> bool:
    try:
        keras.optimizers.get(name)
    except ValueError:
        return False
    return True
