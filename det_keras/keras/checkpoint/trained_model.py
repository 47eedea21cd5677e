"""The model of a `fit` with its optimizers and all variables that its steps change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from det_keras.keras.checkpoint.variables import VariableSet, build_everything

__all__ = ["TrainedModel"]


class TrainedModel:
    """A model that is trained.

    Args:
        model: the compiled model.
        optimizers: all optimizers that may train it; some models choose one in their own train step.

    Attributes:
        model: the Keras model.
        optimizers: as given.
    """

    def __init__(self, model: Any, optimizers: Sequence[Any]) -> None:
        self.model = model
        self.optimizers = optimizers
        self._variables: VariableSet | None = None

    @property
    def variables(self) -> VariableSet:
        """All variables of the training; they are complete after the first step, or after `build`."""
        if self._variables is None:
            self._variables = VariableSet.of_model(
                self.model, [optimizer for optimizer in self.optimizers if optimizer.built]
            )
        return self._variables

    def build(self, element_spec: Any) -> None:
        """Create every variable that the first step would create.

        Args:
            element_spec: structure, shapes and dtypes of a batch.
        """
        build_everything(self.model, element_spec)
