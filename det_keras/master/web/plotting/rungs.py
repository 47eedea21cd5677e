"""Where an adaptive search stopped each trial, and what trials had reached at the length of a rung."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.experiments.rungs import last_rungs
from det_keras.master.reports.points import EVERY_POINT, Floats
from det_keras.master.reports.series import Series
from det_keras.protocol.metrics import VALIDATION
from det_keras.protocol.states import COMPLETED, named


def stopped_at(trials: Sequence[Mapping[str, Any]], brackets: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return where the search stopped trials that have ended before the last rung: ``stopped at rung 1 of 3``.

    Args:
        trials: trials of the REST API.
        brackets: the brackets of the search, from the REST API.
    """
    last = last_rungs(brackets)
    ended = (trial["id"] for trial in trials if trial["state"] == named(COMPLETED))
    return {trial: f"stopped at {last[trial]}" for trial in ended if trial in last}


def values_at(
    master: EmbeddedMaster,
    experiment: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    rungs: Mapping[str, Any],
    length: int,
) -> dict[int, float]:
    """Return the metric of each trial at a length; a trial without a validation there is absent.

    A bracket has rungs at a part of the lengths only, but its trials validate at other lengths too. Where a trial was
    compared at this length by its bracket, the value is the one that the search compared.

    Args:
        master: has the curves.
        experiment: the `Experiment` of the REST API.
        trials: its trials.
        rungs: its rungs from the REST API.
        length: in the unit of the rungs.
    """
    found: dict[int, float] = {}
    sizes = {trial["id"]: trial["hparams"].get("global_batch_size") for trial in trials}
    curves = master.curves.read(
        list(sizes), group=VALIDATION, metric=experiment["searcherMetric"], most_points=EVERY_POINT
    )
    for series in curves:
        places = _lengths(series, rungs["unit"], sizes[series.trial_id])
        values = series.values[np.isclose(places, length, rtol=1e-6, atol=0.0) & np.isfinite(series.values)]
        if len(values):
            found[series.trial_id] = float(values[-1])
    return {**found, **at_rung(rungs["brackets"], length)}


def _lengths(series: Series, unit: str, batch_size: Any) -> Floats:
    """Return the lengths at which a trial validated; NaN where its reports do not say them in this unit."""
    if unit == "epochs" and series.epochs is not None:
        return series.epochs
    if unit == "batches":
        return series.batches.astype(np.float64)
    if unit == "records" and isinstance(batch_size, int):
        return series.batches.astype(np.float64) * batch_size
    return np.full(len(series.batches), np.nan)


def at_rung(brackets: Sequence[Mapping[str, Any]], length: int) -> dict[int, float]:
    """Return the metrics that the brackets compared at their rungs of a length."""
    return {
        result["trialId"]: result["metric"]
        for bracket in brackets
        for rung in bracket["rungs"]
        if rung["length"] == length
        for result in rung["results"]
        if result["metric"] is not None
    }
