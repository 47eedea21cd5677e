"""The plots of pages and reports: reads their data and creates the figures."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from det_keras.display import flat_hparams, parse_time
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.reports.series import Series
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply
from det_keras.master.web import figures
from det_keras.master.web.experiments import differing
from det_keras.master.web.figures import Attempt, Figure, Line, Point, Rung
from det_keras.master.web.metric_choice import Metric
from det_keras.master.web.rest import Rest

__all__ = [
    "MOST_LINES",
    "best_first",
    "curves_figure",
    "parallel_figure",
    "router",
    "rungs_figure",
    "runs_of",
    "scatter_figure",
]

router = APIRouter(prefix="/figures", include_in_schema=False)

#: Maximum number of curves in one plot, which would be unreadable with more: the best are shown.
MOST_LINES = 50
_MOST_POINTS = 1000
_MOST_METRICS = 20
_X_TITLES = {"batches": "batches", "epochs": "epochs", "time": "hours since the trial's start"}


@router.get("/curves")
async def curves(
    master: MasterDep,
    request: Request,
    experiment: int | None = None,
    trial: Annotated[list[int], Query()] = [],  # noqa: B006 - FastAPI copies it
    metric: Annotated[list[str], Query()] = [],  # noqa: B006
    x: str = "batches",
    smoothing: Annotated[float, Query(ge=0.0, lt=1.0)] = 0.0,
    log_x: bool = False,
    log_y: bool = False,
) -> Response:
    """Return the plot of metrics of trials, or of an experiment's best trials.

    Args:
        master: has the curves.
        request: the page's request.
        experiment: number of the experiment whose trials are shown; None for those in `trial`.
        trial: numbers of trials.
        metric: metrics in the form ``group.name``.
        x: ``batches``, ``epochs`` or ``time``.
        smoothing: weight of the moving average, from 0 (none) to below 1.
        log_x: whether the x axis is logarithmic.
        log_y: whether the y axis is logarithmic.

    Raises:
        InvalidArgumentError: `x` is unknown, or there are more than 20 metrics.
    """
    if x not in _X_TITLES:
        raise InvalidArgumentError(f"`x` must be one of {', '.join(_X_TITLES)}, received {x!r}.")
    if len(metric) > _MOST_METRICS:
        raise InvalidArgumentError(
            f"At most {_MOST_METRICS} metrics fit in one plot, received {len(metric)}."
        )
    trial_ids = list(dict.fromkeys(trial))
    if experiment is not None:
        shown, trials = await _search_of(request, experiment)
        trial_ids = [ranked["id"] for ranked in best_first(trials, shown)]
    wanted = [Metric.of(key) for key in metric]
    draw = _Drawing(x, smoothing, log_x=log_x, log_y=log_y)
    shown_ids = trial_ids[:MOST_LINES]
    return reply(await anyio.to_thread.run_sync(curves_figure, master, shown_ids, wanted, draw, trial_ids))


@router.get("/scatter")
async def scatter(
    request: Request,
    experiment: int,
    log_y: bool = False,
    width: Annotated[int, Query(ge=0)] = 960,
) -> Response:
    """Return the plot of the metric of an experiment's trials against each hyperparameter.

    Args:
        request: the page's request.
        experiment: number of the experiment.
        log_y: whether the y axes are logarithmic.
        width: available width in pixels.
    """
    shown, trials = await _search_of(request, experiment)
    return reply(scatter_figure(shown, trials, log_y=log_y, width_px=width))


@router.get("/parallel")
async def parallel(request: Request, experiment: int) -> Response:
    """Return the plot of all hyperparameters and the metric of an experiment's trials."""
    shown, trials = await _search_of(request, experiment)
    return reply(parallel_figure(shown, trials))


@router.get("/rungs")
async def rungs(request: Request, experiment: int) -> Response:
    """Return the plot of the rungs of an adaptive search."""
    rest = Rest(request)
    shown, rungs = await asyncio.gather(
        rest.get(f"/experiments/{experiment}"), rest.get(f"/experiments/{experiment}/searcher/rungs")
    )
    return reply(rungs_figure(shown["experiment"], rungs))


@router.get("/runs")
async def runs(request: Request, trial: int) -> Response:
    """Return the time line of a trial's runs."""
    rest = Rest(request)
    shown = (await rest.get(f"/trials/{trial}"))["trial"]
    allocations = await runs_of(rest, shown)
    return reply(figures.runs([_run(allocation) for allocation in reversed(allocations)]))


async def runs_of(rest: Rest, trial: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the allocations of a trial, latest first; a continued trial has several tasks."""
    tasks = await asyncio.gather(*(rest.get(f"/tasks/{task_id}") for task_id in trial["taskIds"]))
    found: list[dict[str, Any]] = [
        allocation for answer in tasks for allocation in answer["task"]["allocations"]
    ]
    return sorted(found, key=lambda allocation: allocation["startTime"] or "", reverse=True)


@dataclass(frozen=True)
class _Drawing:
    """How curves are drawn: x axis, smoothing, scales of the axes."""

    x: str = "batches"
    smoothing: float = 0.0
    log_x: bool = False
    log_y: bool = False


def curves_figure(
    master: EmbeddedMaster,
    trial_ids: Sequence[int],
    metrics: Sequence[Metric],
    draw: _Drawing | None = None,
    of: Sequence[int] | None = None,
) -> Figure:
    """Return the curves of some metrics of some trials.

    Args:
        master: has the curves.
        trial_ids: numbers of the trials.
        metrics: the metrics.
        draw: x axis, smoothing and scales; None for the defaults.
        of: all trials that the same plot may show after an update; None for `trial_ids`.
    """
    draw = draw or _Drawing()
    lines: list[Line] = []
    ranks = {trial_id: rank for rank, trial_id in enumerate(sorted(trial_ids if of is None else of))}
    for place, metric in enumerate(metrics):
        found = master.curves.read(
            trial_ids,
            group=metric.group,
            metric=metric.name,
            most_points=_MOST_POINTS,
            smoothing=draw.smoothing,
            log_x=draw.log_x,
        )
        for series in found:
            label = _label(series.trial_id, metric, is_one=len(trial_ids) == 1, is_only=len(metrics) == 1)
            # A trial keeps its colour when its rank changes.
            style = ranks[series.trial_id] * len(metrics) + place
            key = f"{series.trial_id}.{metric.key}"
            lines.append(Line(label, _places(series, draw.x), _json_values(series.values), style, key))
    name = metrics[0].name if metrics else ""
    name = name.removeprefix("val_") if len(metrics) > 1 else name
    return figures.curves(lines, x_title=_X_TITLES[draw.x], y_title=name, log_x=draw.log_x, log_y=draw.log_y)


def scatter_figure(
    experiment: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    *,
    log_y: bool = False,
    width_px: int = 960,
) -> Figure:
    """Return the metric of trials against each hyperparameter that varies.

    Args:
        experiment: the `Experiment` of the REST API.
        trials: its trials.
        log_y: whether the y axes are logarithmic.
        width_px: available width in pixels.
    """
    points = _points(trials)
    return figures.scatter(
        points, _varied(points), metric=experiment["searcherMetric"], log_y=log_y, width_px=width_px
    )


def parallel_figure(experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Figure:
    """Return one line per trial through its hyperparameters."""
    points = _points(trials)
    return figures.parallel(
        points,
        _varied(points),
        metric=experiment["searcherMetric"],
        smaller_is_better=experiment["config"]["searcher"]["smaller_is_better"],
    )


def rungs_figure(experiment: Mapping[str, Any], rungs: Mapping[str, Any]) -> Figure:
    """Return the metrics of the trials that reached each rung."""
    entries = [
        Rung(bracket, rung["length"], _results(rung))
        for bracket, shown in enumerate(rungs["brackets"])
        for rung in shown["rungs"]
    ]
    return figures.rungs(entries, metric=experiment["searcherMetric"], unit=rungs["unit"])


def best_first(trials: Sequence[Mapping[str, Any]], experiment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return trials ordered by their best validation; trials without a validation come last."""
    sign = 1.0 if experiment["config"]["searcher"]["smaller_is_better"] else -1.0

    def key(trial: Mapping[str, Any]) -> tuple[bool, float, int]:
        value = trial["searcherMetricValue"]
        return value is None, sign * (value or 0.0), trial["id"]

    return sorted(trials, key=key)


async def _search_of(request: Request, experiment_id: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rest = Rest(request)
    shown, trials = await asyncio.gather(
        rest.get(f"/experiments/{experiment_id}"),
        rest.get(f"/experiments/{experiment_id}/trials", limit=-1),
    )
    return shown["experiment"], trials["trials"]


def _results(rung: Mapping[str, Any]) -> list[tuple[int, float]]:
    return [
        (result["trialId"], result["metric"]) for result in rung["results"] if result["metric"] is not None
    ]


def _points(trials: Sequence[Mapping[str, Any]]) -> list[Point]:
    return [
        Point(trial["id"], dict(flat_hparams(trial["hparams"])), trial["searcherMetricValue"])
        for trial in trials
        if trial["searcherMetricValue"] is not None
    ]


def _varied(points: Sequence[Point]) -> list[str]:
    columns = [point.hparams for point in points]
    return differing(columns) or list(dict.fromkeys(name for column in columns for name in column))


def _label(trial_id: int, metric: Metric, *, is_one: bool, is_only: bool) -> str:
    if is_one:
        return f"{metric.group} {metric.name}"
    return f"Trial {trial_id}" if is_only else f"Trial {trial_id} {metric.group} {metric.name}"


def _places(series: Series, x: str) -> list[float | None]:
    if x == "time":
        return _json_values(series.seconds / 3600)
    if x == "epochs":
        return [None] * len(series.batches) if series.epochs is None else _json_values(series.epochs)
    batches: list[float | None] = series.batches.tolist()
    return batches


def _json_values(values: Any) -> list[float | None]:
    """Return an array for JSON: gaps are None, and numbers have seven digits."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values.tolist()]


def _run(allocation: Mapping[str, Any]) -> Attempt:
    end, code = allocation["endTime"], allocation["statusCode"]
    if end is None:
        outcome = "runs"
    elif allocation["exitReason"]:
        outcome = allocation["exitReason"]
    else:
        outcome = "ended" if code in (0, None) else f"exit code {code}"
    number = allocation["allocationId"].rsplit(".", 1)[-1]
    is_failure = end is not None and code not in (0, None)
    return Attempt(number, _local(allocation["startTime"]), _local(end), outcome, is_failure)


def _local(text: str | None) -> str:
    """Return a time, or the current time, in the local zone as in the tables: plots have no time zones."""
    moment = parse_time(text) or datetime.now(timezone.utc)
    return moment.astimezone().replace(tzinfo=None).isoformat(" ")
