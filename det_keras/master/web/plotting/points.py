"""The trials of a search as points: their hyperparameters and the metric by which they are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.display import flat_hparams
from det_keras.master.web.plotting.rungs import stopped_at

# The first integer that may be too large for a float.
_LARGEST_INTEGER = 1 << 1023


@dataclass(frozen=True)
class Point:
    """One trial of a search.

    Attributes:
        trial_id: number of the trial.
        hparams: hyperparameters by flat names.
        metric: its value of the searcher's metric: the best one, or that at a rung.
        rung: text about the rung at which the search stopped it; empty for a trial that was not stopped.
    """

    trial_id: int
    hparams: Mapping[str, Any]
    metric: float
    rung: str = ""


def points_of(
    trials: Sequence[Mapping[str, Any]],
    brackets: Sequence[Mapping[str, Any]],
    values: Mapping[int, float] | None = None,
) -> list[Point]:
    """Return the trials that have a metric.

    Args:
        trials: trials of the REST API.
        brackets: the rungs of the search.
        values: the values that are compared, by trial; None for the best value of each.
    """
    stopped = stopped_at(trials, brackets)
    if values is None:
        values = {trial["id"]: trial["searcherMetricValue"] for trial in trials}
    return [
        Point(trial["id"], dict(flat_hparams(trial["hparams"])), value, stopped.get(trial["id"], ""))
        for trial in trials
        if (value := values.get(trial["id"])) is not None
    ]


def is_number(value: Any) -> bool:
    """Return whether a value is a number that a plot can place; an integer may be too large for that."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < _LARGEST_INTEGER
