"""The plots of a search as plain data, for its page and for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from det_keras.master.web.experiments import differing
from det_keras.master.web.plotting.importance import importances
from det_keras.master.web.plotting.points import Point, is_number, points_of
from det_keras.master.web.plotting.space import scales
from det_keras.protocol.metrics import best_first

# Positive values whose range is at least this wide need a logarithmic axis.
_WIDE = 50


def search_plots(
    experiment: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    brackets: Sequence[Mapping[str, Any]] = (),
    *,
    values: Mapping[int, float] | None = None,
    most: int | None = None,
) -> dict[str, Any]:
    """Return the importances of hyperparameters, their axes, and the trials that have a value to compare.

    Args:
        experiment: the `Experiment` of the REST API.
        trials: its trials.
        brackets: the rungs of its search.
        values: the values that are compared, by trial; None for the best value of each.
        most: only the first so many trials are returned; by default all.
    """
    points = points_of(trials, brackets, values)
    kinds = scales(experiment["config"]["hyperparameters"])
    method, important = importances(points, kinds)
    axes = _axes(points, [one.name for one in important], kinds)
    return {
        "metric": experiment["searcherMetric"],
        "smallerIsBetter": experiment["config"]["searcher"]["smaller_is_better"],
        "method": method,
        "importances": [{"name": one.name, "value": round(one.value, 4)} for one in important],
        "axes": axes,
        "trials": [
            {
                "id": point.trial_id,
                "value": point.metric,
                "stopped": point.rung,
                "hparams": [point.hparams.get(axis["name"]) for axis in axes],
            }
            for point in points[:most]
        ],
    }


def rungs_plot(
    experiment: Mapping[str, Any], rungs: Mapping[str, Any], *, most: int | None = None
) -> dict[str, Any]:
    """Return the metrics of the trials that reached each rung.

    Args:
        experiment: the `Experiment` of the REST API.
        rungs: its rungs from the REST API, which have the best trials first.
        most: only the first so many trials of each rung are returned; by default all.
    """
    found = [
        {"bracket": bracket, "length": rung["length"], "id": result["trialId"], "value": result["metric"]}
        for bracket, shown in enumerate(rungs["brackets"], start=1)
        for rung in shown["rungs"]
        for result in [one for one in rung["results"] if one["metric"] is not None][:most]
    ]
    return {"metric": experiment["searcherMetric"], "unit": rungs["unit"], "results": found}


def best_trials_first(
    trials: Sequence[Mapping[str, Any]], experiment: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return trials ordered by their best validation; trials without a validation come last."""
    return best_first(
        trials,
        lambda trial: trial["searcherMetricValue"],
        smaller_is_better=experiment["config"]["searcher"]["smaller_is_better"],
        otherwise=lambda trial: int(trial["id"]),
    )


def _axes(
    points: Sequence[Point], important: Sequence[str], kinds: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return the hyperparameters that differ (all, if none does), the most important first, with their scales.

    The scale of a hyperparameter is that of the space; without one it follows the values.
    """
    columns = [point.hparams for point in points]
    names = list(dict.fromkeys([*important, *(name for column in columns for name in column)]))
    differ = set(differing({name: column.get(name) for name in names} for column in columns))
    return [
        {"name": name, "scale": _scale([column.get(name) for column in columns], kinds.get(name))}
        for name in names
        if name in differ or not differ
    ]


def _scale(values: Sequence[Any], kind: str | None) -> str:
    known = [value for value in values if value is not None]
    if not all(map(is_number, known)) or not known:
        return "category"
    low, high = min(known), max(known)
    return kind or ("log" if low > 0 and high / low >= _WIDE else "linear")
