"""The plots of pages and reports: reads their data and creates the figures."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import anyio.to_thread
import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from det_keras.display import flat_hparams
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply
from det_keras.master.web.experiments import differing
from det_keras.master.web.metric_choice import Metric
from det_keras.master.web.plotting import figures
from det_keras.master.web.plotting.figures import Figure, Line, Point, Rung
from det_keras.master.web.plotting.importance import importances
from det_keras.master.web.plotting.rungs import stopped_at, values_at
from det_keras.master.web.plotting.space import scales
from det_keras.master.web.rest import Rest
from det_keras.protocol.metrics import TRAINING, VALIDATION, best_first

router = APIRouter(prefix="/figures", include_in_schema=False)

#: Maximum number of curves in one plot, which would be unreadable with more: the best are shown.
MOST_LINES = 50
# As on the wall.
_DASHES = {TRAINING: "solid", VALIDATION: "dash"}
_MOST_POINTS = 400


@router.get("/scatter")
async def scatter(
    master: MasterDep,
    request: Request,
    experiment: int,
    rung: int = 0,
    log_y: bool = False,
    width: Annotated[int, Query(ge=0)] = 960,
) -> Response:
    """Return the plot of the metric of an experiment's trials against each hyperparameter.

    Args:
        master: has the curves.
        request: the page's request.
        experiment: number of the experiment.
        rung: length of the rung at which trials are compared; 0 for the best value of each.
        log_y: whether the y axes are logarithmic.
        width: available width in pixels.
    """
    shown, trials, rungs = await _search_of(request, experiment)

    # The importances take seconds.
    def draw() -> Figure:
        values = values_at(master, shown, trials, rungs, rung) if rung else None
        return scatter_figure(shown, trials, rungs["brackets"], values=values, log_y=log_y, width_px=width)

    return reply(await anyio.to_thread.run_sync(draw))


def curves_figure(
    master: EmbeddedMaster,
    trial_ids: Sequence[int],
    metrics: Sequence[Metric],
    *,
    most_points: int = _MOST_POINTS,
) -> Figure:
    """Return the curves of some metrics of some trials.

    Args:
        master: has the curves.
        trial_ids: numbers of the trials.
        metrics: the metrics, such as the loss of training and of validation.
        most_points: maximum number of points of each curve, at least 4.
    """
    lines: list[Line] = []
    for metric in metrics:
        found = master.curves.read(trial_ids, group=metric.group, metric=metric.name, most_points=most_points)
        for series in found:
            label = f"Trial {series.trial_id}"
            if len(metrics) > 1:
                label += f" {metric.group} {metric.name}"
            batches: list[float | None] = series.batches.tolist()
            dash = _DASHES.get(metric.group, "dot")
            lines.append(Line(label, batches, _json_values(series.values), series.trial_id, dash))
    name = metrics[0].name if metrics else ""
    return figures.curves(
        lines, x_title="batches", y_title=name.removeprefix("val_") if len(metrics) > 1 else name
    )


def scatter_figure(
    experiment: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    brackets: Sequence[Mapping[str, Any]] = (),
    *,
    values: Mapping[int, float] | None = None,
    log_y: bool = False,
    width_px: int = 960,
    most: int | None = None,
) -> Figure:
    """Return the metric of trials against each hyperparameter that varies, the most important hyperparameter first.

    Args:
        experiment: the `Experiment` of the REST API.
        trials: its trials.
        brackets: the rungs of its search.
        values: the values that are compared, by trial; None for the best value of each.
        log_y: whether the y axes are logarithmic.
        width_px: available width in pixels.
        most: only the first so many trials are drawn; by default all.
    """
    points = points_of(trials, brackets, values)
    kinds = scales(experiment["config"]["hyperparameters"])
    return figures.scatter(
        points[:most],
        _most_important_first(points, kinds),
        metric=experiment["searcherMetric"],
        scales=kinds,
        log_y=log_y,
        width_px=width_px,
    )


def parallel_figure(
    experiment: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    brackets: Sequence[Mapping[str, Any]] = (),
    *,
    values: Mapping[int, float] | None = None,
    most: int | None = None,
) -> Figure:
    """Return one line per trial through its hyperparameters; the arguments are those of `scatter_figure`."""
    points = points_of(trials, brackets, values)
    kinds = scales(experiment["config"]["hyperparameters"])
    return figures.parallel(
        points[:most],
        _most_important_first(points, kinds),
        metric=experiment["searcherMetric"],
        scales=kinds,
        smaller_is_better=experiment["config"]["searcher"]["smaller_is_better"],
    )


def rungs_figure(
    experiment: Mapping[str, Any], rungs: Mapping[str, Any], *, most: int | None = None
) -> Figure:
    """Return the metrics of the trials that reached each rung.

    Args:
        experiment: the `Experiment` of the REST API.
        rungs: its rungs from the REST API, which have the best trials first.
        most: only the first so many trials of each rung are drawn; by default all.
    """
    entries = [
        Rung(bracket, rung["length"], _results(rung)[:most])
        for bracket, shown in enumerate(rungs["brackets"])
        for rung in shown["rungs"]
    ]
    return figures.rungs(entries, metric=experiment["searcherMetric"], unit=rungs["unit"])


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


async def _search_of(
    request: Request, experiment_id: int
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Return an experiment, its trials and its rungs."""
    rest = Rest(request)
    shown, trials, rungs = await asyncio.gather(
        rest.get(f"/experiments/{experiment_id}"),
        rest.get(f"/experiments/{experiment_id}/trials", limit=-1),
        rest.get(f"/experiments/{experiment_id}/searcher/rungs"),
    )
    return shown["experiment"], trials["trials"], rungs


def _results(rung: Mapping[str, Any]) -> list[tuple[int, float]]:
    return [
        (result["trialId"], result["metric"]) for result in rung["results"] if result["metric"] is not None
    ]


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


def _most_important_first(points: Sequence[Point], kinds: Mapping[str, str]) -> list[str]:
    """Return the hyperparameters that vary; those whose importance is not known come last."""
    columns = [point.hparams for point in points]
    names = differing(columns) or list(dict.fromkeys(name for column in columns for name in column))
    _, known = importances(points, kinds)
    places = {one.name: place for place, one in enumerate(known)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def _json_values(values: Any) -> list[float | None]:
    """Return an array for JSON: gaps are None, and numbers have as many digits as the curve's range needs."""
    known = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        span = float(np.ptp(known)) if known.size else 0.0
    digits = 7
    if 0 < span < math.inf:
        # Four digits of the range, also if that is small beside the values.
        digits = 4 + math.floor(math.log10(float(np.abs(known).max())) - math.log10(span))
        digits = min(max(digits, 4), 12)
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]
