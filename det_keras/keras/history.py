"""The history that `fit` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from det_keras import notebook

__all__ = ["FitHistory", "Score"]

_LONG_NAMES = {
    "acc": "accuracy",
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
}
_OTHER_NAMES = {**_LONG_NAMES, **{long: short for short, long in _LONG_NAMES.items()}}


class Score(Mapping[str, list[float]]):
    """The validation part of a history; Keras's short names are supported.

    ``score["val_acc"]`` is ``score["val_accuracy"]``, and ``score["mean_squared_error"]`` is ``score["val_mse"]``.
    """

    def __init__(self, history: Mapping[str, list[float]]) -> None:
        self._values = {name: values for name, values in history.items() if name.startswith("val_")}

    def __getitem__(self, name: str) -> list[float]:
        if name in self._values:
            return self._values[name]
        plain = name.removeprefix("val_")
        for known in (f"val_{plain}", f"val_{_OTHER_NAMES.get(plain, plain)}"):
            if known in self._values:
                return self._values[known]
        raise KeyError(
            f"There is no validation metric {name!r}. There are: {', '.join(self._values) or 'none'}."
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class FitHistory(keras.callbacks.History):  # type: ignore[misc]
    """The history of a whole training, including the part before a resume."""

    @property
    def score(self) -> Score:
        """The validation metrics by name, one value for each validated epoch."""
        return Score(self.history)

    def get_state(self) -> dict[str, Any]:
        """Return the history so far as JSON values."""
        return {
            "epoch": [int(epoch) for epoch in self.epoch],
            "history": {name: [_plain(value) for value in values] for name, values in self.history.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        self.epoch = list(state["epoch"])
        self.history = {name: list(values) for name, values in state["history"].items()}

    def _repr_html_(self) -> str:
        """Return HTML with the metrics as a table, and the losses as curves."""
        return notebook.history_card(f"{len(self.epoch)} epochs", self.epoch, self.history)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
