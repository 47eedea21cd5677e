"""The model of a `fit` with its optimizers and all variables that its steps change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from det_keras.keras.checkpoint.variables import VariableSet, build_everything
from det_keras.keras.private_api.steps import captured_variables


class TrainedModel:
    """A model that is trained.

    Args:
        model: the compiled model.
        optimizers: all optimizers that may train it; some models choose one in their own train step.

    Attributes:
        model: the Keras model.
        optimizers: as given.
        used_when_built: handles of the variables that the plain step uses, by name; {} before `build`.
        is_complete: whether every variable that training needs exists.
    """

    def __init__(self, model: Any, optimizers: Sequence[Any]) -> None:
        self.model = model
        self.optimizers = optimizers
        self.is_complete = False
        self._variables: VariableSet | None = None
        self.used_when_built: Mapping[str, tf.Tensor] = {}

    @property
    def variables(self) -> VariableSet:
        """All variables of the training; they are complete after the first step, or after `build`."""
        if self.is_complete and self._variables is None:
            self._variables = self._find_variables()
        return self._variables or self._find_variables()

    def complete(self) -> None:
        """Record that the first step was run: there will be no other variables."""
        self.is_complete = True

    def known_variables(self) -> list[Any]:
        """Return the variables that model, optimizers and metrics have at present."""
        return [item.variable for item in (self._variables or self._find_variables()).tracked]

    def _find_variables(self) -> VariableSet:
        return VariableSet.of_model(
            self.model, [optimizer for optimizer in self.optimizers if optimizer.built]
        )

    @property
    def takes_single_batches(self) -> bool:
        """Whether each execution of Keras's own train function takes one batch.

        An execution of several batches tries to read beyond the end of an epoch, and a train function of the user's own
        may read as it likes.
        """
        is_own = type(self.model).make_train_function is not keras.Model.make_train_function
        return not is_own and self.model.steps_per_execution == 1

    def build(self, element_spec: Any) -> None:
        """Create every variable that the first step would create.

        Args:
            element_spec: structure, shapes and dtypes of a batch.
        """
        build_everything(self.model, element_spec)
        self.complete()
        self.used_when_built = captured_variables(self.model)
