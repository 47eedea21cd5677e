"""Summaries of metrics: count, smallest, largest, sum, mean and last of each name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from det_keras.protocol.metrics import number, summary_name

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")


def summarise(summary: Mapping[str, Any], metrics: Mapping[str, object]) -> dict[str, Any]:
    """Return the summary of one group, updated with a report."""
    result = dict(summary)
    for name, value in metrics.items():
        result[name] = _with(result.get(name), value)
    return result


def summarise_all(reports: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the summaries of all groups from (group, metrics) of each report, in order."""
    result: dict[str, Any] = {}
    for group, metrics in reports:
        name = summary_name(group)
        result[name] = summarise(result.get(name, {}), metrics)
    return result


def summarise_columns(
    summary: Mapping[str, Any], metrics: Mapping[str, npt.NDArray[np.float64]]
) -> dict[str, Any]:
    """Return the summary of one group, updated with all values of some metrics, in the order of steps."""
    result = dict(summary)
    for name, values in metrics.items():
        old = result.get(name)
        if not len(values):
            continue
        last = float(values[-1])
        if old is not None and old["type"] != "number":
            result[name] = {"type": "string", "last": last}
            continue
        if old is not None:
            # As the sum of single reports: one after another.
            values = np.concatenate(([_float(old["min"]), _float(old["max"])], values))
        count = len(values) if old is None else len(values) - 2 + old["count"]
        with np.errstate(all="ignore"):
            total = float(
                np.cumsum(values)[-1] if old is None else np.cumsum([_float(old["sum"]), *values[2:]])[-1]
            )
            # NaN wins over every other value.
            least, most = float(values.min()), float(values.max())
        result[name] = {
            "type": "number",
            "count": count,
            "min": least,
            "max": most,
            "sum": total,
            "mean": total / count,
            "last": last,
        }
    return result


def _with(entry: Mapping[str, Any] | None, value: Any) -> dict[str, Any]:
    kind = _kind(value)
    if entry is not None and entry["type"] != kind:
        return {"type": "string", "last": value}
    if kind != "number":
        return {"type": kind, "last": value}
    x = number(value)
    assert x is not None
    old = entry or {"count": 0, "sum": 0.0, "min": x, "max": x}
    count, total = old["count"] + 1, _float(old["sum"]) + x
    return {
        "type": "number",
        "count": count,
        "min": _extreme(min, _float(old["min"]), x),
        "max": _extreme(max, _float(old["max"]), x),
        "sum": total,
        "mean": total / count,
        "last": x,
    }


def _float(value: Any) -> float:
    # Stored NaN and infinities are read as their names.
    return float(value)


def _extreme(pick: Any, a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return math.nan
    return float(pick(a, b))


def _kind(value: Any) -> str:
    if number(value) is not None:
        return "number"
    if isinstance(value, str):
        return "date" if _TIME.match(value) else "string"
    for kinds, name in ((bool, "boolean"), (dict, "object"), (list, "array")):
        if isinstance(value, kinds):
            return name
    return "null"
