"""Converts Keras metrics to plain numbers: most are scalars, some are arrays with a value for each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["metrics_text", "plain_logs", "plain_value"]


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
