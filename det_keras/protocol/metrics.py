"""Reported metrics: their groups, the names of their summaries, and values as numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

TRAINING = "training"
VALIDATION = "validation"
#: Groups of samples of a machine's load. They belong to no batch.
PROFILER_GROUPS = frozenset({"gpu", "cpu", "memory", "disk", "network"})

#: Reports that one call may have.
MOST_TOGETHER = 500

#: In the group ``cpu``: how often no batch was ready beside the one that was being trained, in percent.
DATA_WAIT = "data_wait_percent"

#: In the group ``cpu``: the speed of the training, in the unit that is known, and the time until its end.
SAMPLES_PER_SECOND = "samples_per_second"
BATCHES_PER_SECOND = "batches_per_second"
SECONDS_LEFT = "seconds_left"

#: Values of a report that say where it was made; they are not measurements.
POSITIONS = frozenset({"batches", "epoch", "epochs", "records"})

_SUMMARY_NAMES = {TRAINING: "avg_metrics", VALIDATION: "validation_metrics"}


def summary_name(group: str) -> str:
    """Return the name under which the summary of a group is stored."""
    return _SUMMARY_NAMES.get(group, group)


def group_of(name: str) -> str:
    """Return the group whose summary is stored under `name`."""
    return next((group for group, kept in _SUMMARY_NAMES.items() if kept == name), name)


def best_metric(trial: Mapping[str, Any], name: str) -> float | None:
    """Return a trial's searcher metric at its best validation, None before the first.

    Args:
        trial: as in the REST API. Its `searcherMetricValue` is not used: Determined 0.38.1 returns 0 there.
        name: name of the metric.
    """
    validation = trial.get("bestValidation") or {}
    return number(((validation.get("metrics") or {}).get("avgMetrics") or {}).get(name))


def number(value: object) -> float | None:
    """Return a metric's value if it is a number, NaN and infinities as text included; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            # JSON has integers of any size.
            return math.inf if value > 0 else -math.inf
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return None


def is_better(value: float, than: float | None, *, smaller_is_better: bool) -> bool:
    """Return whether a value of the searcher's metric is strictly better than another one.

    NaN is never better; every other value is better than NaN and than None.

    Args:
        value: the new value.
        than: the value to compare with; None if there is none yet.
        smaller_is_better: direction of the metric.
    """
    if math.isnan(value):
        return False
    if than is None or math.isnan(than):
        return True
    return value < than if smaller_is_better else value > than


def rank(value: object, *, smaller_is_better: bool) -> tuple[bool, float]:
    """Return a key that sorts by a metric: the best value first, NaN and values that are not numbers last."""
    x = number(value)
    if x is None or math.isnan(x):
        return True, 0.0
    return False, x if smaller_is_better else -x


def best_first(
    entries: Iterable[T],
    value: Callable[[T], object],
    *,
    smaller_is_better: bool,
    otherwise: Callable[[T], int],
) -> list[T]:
    """Return trials or checkpoints by a metric, the best first; those without the metric are last.

    Args:
        entries: what to sort.
        value: returns the metric of an entry.
        smaller_is_better: direction of the metric.
        otherwise: returns the number by which entries of the same metric are sorted.
    """
    return sorted(
        entries, key=lambda entry: (rank(value(entry), smaller_is_better=smaller_is_better), otherwise(entry))
    )
