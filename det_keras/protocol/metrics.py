"""Metrics as they are reported: their groups, where summaries are found, and values as numbers."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["TRAINING", "VALIDATION", "group_of", "number", "summary_name"]

TRAINING = "training"
VALIDATION = "validation"

_SUMMARY_NAMES = {TRAINING: "avg_metrics", VALIDATION: "validation_metrics"}


def summary_name(group: str) -> str:
    """Return under which name the summary of a group is kept."""
    return _SUMMARY_NAMES.get(group, group)


def group_of(name: str) -> str:
    """Return the group whose summary is kept under `name`."""
    return next((group for group, kept in _SUMMARY_NAMES.items() if kept == name), name)


def number(value: Any) -> float | None:
    """Return a metric's value if it is a number, NaN and infinities as text included; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            # JSON knows whole numbers of any size.
            return math.inf if value > 0 else -math.inf
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return None
