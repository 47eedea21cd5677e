"""Metrics as they are reported: their groups, where summaries are found, and values as numbers."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["TRAINING", "VALIDATION", "group_of", "is_better", "number", "rank", "summary_name"]

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


def is_better(value: float, than: float | None, *, smaller_is_better: bool) -> bool:
    """Return whether a value of the searcher's metric is strictly better than another one.

    NaN is never better; every other value is better than NaN and than None.
    """
    if math.isnan(value):
        return False
    if than is None or math.isnan(than):
        return True
    return value < than if smaller_is_better else value > than


def rank(value: Any, *, smaller_is_better: bool) -> tuple[bool, float]:
    """Return a key that sorts by a metric, the best value first, and what is no number or NaN last."""
    x = number(value)
    if x is None or math.isnan(x):
        return True, 0.0
    return False, x if smaller_is_better else -x
