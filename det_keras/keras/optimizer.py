"""`wrap_optimizer`: makes an optimizer known to the context."""

from __future__ import annotations

from typing import Any

import keras

__all__ = ["OptimizerRegistry"]


class OptimizerRegistry:
    """The optimizers whose state belongs into checkpoints."""

    def __init__(self) -> None:
        self._wrapped: list[Any] = []

    def wrap(self, optimizer: Any) -> Any:
        """Note `optimizer` and return it; on one worker nothing about it changes.

        Raises:
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
        return optimizer

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


def _is_known(name: str) -> bool:
    try:
        keras.optimizers.get(name)
    except ValueError:
        return False
    return True
