"""Metric values as strict JSON carries them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["to_wire"]


def to_wire(value: Any) -> Any:
    """Return `value` as strict JSON can carry it: NumPy values as Python's, NaN and infinities as text."""
    if isinstance(value, Mapping):
        return {str(name): to_wire(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_wire(item) for item in value]
    if hasattr(value, "tolist"):
        return to_wire(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
