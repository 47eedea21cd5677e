"""`wrap_optimizer`: makes an optimizer known to the context."""

from __future__ import annotations

from typing import Any

import keras

__all__ = ["OptimizerRegistry"]


class OptimizerRegistry:
    """The optimizers whose state belongs into checkpoints.

    Args:
        aggregation_frequency: batches whose gradients are gathered for one update, at least 1.
        average: divide what was gathered by that number.
    """

    def __init__(self, aggregation_frequency: int = 1, *, average: bool = True) -> None:
        self._aggregation_frequency = aggregation_frequency
        self._average = average
        self._wrapped: list[Any] = []

    def wrap(self, optimizer: Any) -> Any:
        """Note `optimizer` and return it; on one worker only the config's aggregation changes it.

        Raises:
            ValueError: gradients are to be aggregated, and it has taken a step already.
            TypeError: it is no Keras optimizer; for a string the object to pass is shown.
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
        return optimizer

    def _aggregate(self, optimizer: Any) -> None:
        """Make `optimizer` update once in so many batches, with Keras's own accumulation."""
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
            if isinstance(value, keras.optimizers.Optimizer) and all(value is not one for one in optimizers):
                optimizers.append(value)
        return optimizers

    def forget(self) -> None:
        """Let go of optimizers wrapped so far: the phase that they were wrapped for is over."""
        self._wrapped.clear()


def _scale_gradients(optimizer: Any, factor: float) -> None:
    """Multiply every gradient by `factor`: Keras averages what it accumulates, and the sum is wanted."""
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
