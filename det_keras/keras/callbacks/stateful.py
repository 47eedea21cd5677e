"""Keras's `EarlyStopping` and `ReduceLROnPlateau` by validations instead of epochs, for TFKerasTrial scripts.

Such a trial validates by ``min_validation_period``, which need not be at an epoch's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from det_keras.keras.callbacks.callback import Callback
from det_keras.keras.callbacks.old_arguments import current_arguments


class _OnValidation(Callback):
    """Runs the ``on_epoch_end`` of its Keras base class after each validation, and stores its state in checkpoints."""

    _attributes: tuple[str, ...] = ()

    def on_train_begin(self, logs: Any = None) -> None:
        """Reset the number of validations."""
        self.validations = 0
        super().on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Do nothing: this callback acts after validations."""

    def on_test_end(self, logs: Any = None) -> None:
        """Evaluate a validation's metrics, each by its name with ``val_``."""
        named = {f"val_{name}": value for name, value in (logs or {}).items()}
        # Keras's arguments that count epochs count validations here.
        super().on_epoch_end(self.validations, named)
        self.validations += 1

    def get_state(self) -> dict[str, Any]:
        """Return the attributes on which the decisions depend."""
        names = ("validations", *self._attributes)
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        for name, value in state.items():
            setattr(self, name, value)


class EarlyStopping(_OnValidation, keras.callbacks.EarlyStopping):  # type: ignore[misc]
    """Keras's `EarlyStopping`, which acts on every validation and keeps its state over pauses.

    Its arguments are Keras's; `patience` and `start_from_epoch` count validations.
    """

    _attributes = ("wait", "best", "best_weights", "best_epoch", "stopped_epoch")


class ReduceLROnPlateau(_OnValidation, keras.callbacks.ReduceLROnPlateau):  # type: ignore[misc]
    """Keras's `ReduceLROnPlateau`, which acts on every validation and keeps its state over pauses.

    Its arguments are Keras's; `patience` and `cooldown` count validations.
    """

    _attributes = ("wait", "best", "cooldown_counter")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **current_arguments("ReduceLROnPlateau", kwargs))
