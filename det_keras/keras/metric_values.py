"""Metrics as Keras gives them, as plain numbers: most are scalars, some are arrays with a value for each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["metrics_text", "plain_value"]


def plain_value(value: Any) -> Any:
    """Return a scalar as a float, and an array as nested lists of floats."""
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array.tolist()


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """Return metrics for a line of a log."""
    return ", ".join(f"{name}: {_text(plain_value(value))}" for name, value in metrics.items())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(one) for one in value)}]"
    return f"{value:.4g}"
