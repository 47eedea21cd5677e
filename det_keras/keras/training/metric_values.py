"""Converts Keras metrics to plain numbers: most are scalars, some are arrays with a value for each class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np


class LazyMetrics(Mapping[str, Any]):
    """A mapping that is computed at its first access; with several workers all of them access it, or none.

    Args:
        make: computes it; collective with several workers.
    """

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        self._made: Mapping[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        return self._content()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def _content(self) -> Mapping[str, Any]:
        if self._made is None:
            self._made = self._make()
        return self._made


def plain_value(value: Any) -> Any:
    """Return a scalar as a float, and an array as nested lists of floats."""
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array.tolist()


def plain_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the logs of a step as plain numbers by name, without validation metrics.

    A custom train step may return the metrics of `compile` as a nested dict. Its metrics are returned under their own
    names, as in Keras's history.
    """
    plain: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            plain.update(plain_logs(value))
        elif not name.startswith("val_"):
            plain[name] = plain_value(value)
    return plain


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """Return metrics as text for a log line."""
    return ", ".join(f"{name}: {_text(plain_value(value))}" for name, value in metrics.items())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(item) for item in value)}]"
    return f"{value:.4g}"
