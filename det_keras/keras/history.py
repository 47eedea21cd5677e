"""The history that `fit` returns."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from det_keras import notebook
from det_keras.frame import metrics_frame

# Doubles, little-endian on every machine.
_PACKED = "<f8"

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

    def __init__(self) -> None:
        super().__init__()
        # Keras sets it when training begins, and another callback may have ended it before.
        self.epoch: list[int] = []
        # Name -> epochs of its values, for metrics that not every epoch has.
        self._places: dict[str, list[int]] = {}

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Record the metrics of an epoch."""
        for name in logs or {}:
            if name not in self._places:
                self._places[name] = self._epochs_of(name)
            self._places[name].append(int(epoch))
        super().on_epoch_end(epoch, logs)

    @property
    def score(self) -> Score:
        """The validation metrics by name, one value for each validated epoch."""
        return Score(self.history)

    def to_frame(self) -> Any:
        """Return the metrics as a pandas DataFrame.

        The index ``epoch`` counts from 0, as `epoch` of this object does. The columns are the names in `history`, in
        their order. A metric that was not computed in an epoch (``validation_freq``) is missing there. Columns of
        integers are integers, NaN stays NaN.

        Returns:
            A `pandas.DataFrame` with one row for each epoch.

        Raises:
            DetError: pandas is not installed.

        Example:
            ```pycon
            >>> history = FitHistory()
            >>> history.epoch, history.history = [0, 1], {"loss": [0.5, 0.25], "val_loss": [0.75]}
            >>> frame = history.to_frame()
            >>> frame.index.tolist(), frame["loss"].tolist(), frame["val_loss"].tolist()
            ([0, 1], [0.5, 0.25], [nan, 0.75])
            ```
        """
        epochs = [int(epoch) for epoch in self.epoch]
        return metrics_frame(epochs, ["epoch"], self.columns())

    def columns(self) -> dict[str, dict[int, Any]]:
        """Return the values of each metric by epoch, from 0."""
        return {
            name: dict(zip(self._epochs_of(name), map(_plain, values), strict=True))
            for name, values in self.history.items()
        }

    def _epochs_of(self, name: str) -> list[int]:
        """Return the epochs of a metric's values."""
        epochs = [int(epoch) for epoch in self.epoch]
        count = len(self.history.get(name, ()))
        places = self._places.get(name, [])
        if len(places) == count:
            return places
        # Restored from a state that does not name the epochs: as with an integer `validation_freq`.
        period = max(1, len(epochs) // count) if count else 1
        return epochs[period - 1 :: period][:count]

    def get_state(self) -> dict[str, Any]:
        """Return the history so far as JSON values."""
        state: dict[str, Any] = {
            "epoch": [int(epoch) for epoch in self.epoch],
            "history": {name: _plain_values(values) for name, values in self.history.items()},
        }
        count = len(self.epoch)
        partial = {
            name: self._epochs_of(name) for name, values in self.history.items() if len(values) < count
        }
        return {**state, "places": partial} if partial else state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned, packed or not."""
        self.epoch = list(state["epoch"])
        self.history = {name: _unpacked(values) for name, values in state["history"].items()}
        self._places = {name: list(epochs) for name, epochs in state.get("places", {}).items()}

    def _repr_html_(self) -> str:
        """Return HTML with the metrics as a table, and the losses as curves."""
        return notebook.history_card(f"{len(self.epoch)} epochs", self.epoch, self.history)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def pack_history(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a history with all numbers of a metric in one text.

    Each checkpoint contains the whole history. Numbers as JSON take milliseconds after a thousand epochs, packed ones
    microseconds, and they are exact, NaN included.
    """
    return {**state, "history": {name: _packed(values) for name, values in state["history"].items()}}


def _packed(values: list[Any]) -> Any:
    if set(map(type, values)) != {float}:
        return values
    return base64.b64encode(np.array(values, _PACKED).tobytes()).decode()


def _unpacked(values: Any) -> list[Any]:
    if not isinstance(values, str):
        return list(values)
    unpacked: list[Any] = np.frombuffer(base64.b64decode(values), _PACKED).tolist()
    return unpacked


def _plain_values(values: list[Any]) -> list[Any]:
    return list(values) if set(map(type, values)) <= {float} else [_plain(value) for value in values]
