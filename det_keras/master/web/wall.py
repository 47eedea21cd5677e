"""The data of the wall of metrics: which cards and runs there are, and the curves of a card."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

import anyio.to_thread
import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from det_keras.display import flat_hparams
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.reports.alignment import Aligned, align
from det_keras.master.reports.expressions import Expression, Name, check_names, evaluate, metric_of, parse
from det_keras.master.reports.points import EVERY_POINT, Floats
from det_keras.master.reports.series import Series
from det_keras.master.reports.thinning import smooth
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply
from det_keras.master.tasks.allocations import first_starts
from det_keras.master.web.metric_choice import Metric, finite, metrics_of
from det_keras.master.web.rest import Rest
from det_keras.protocol.metrics import (
    BATCHES_PER_SECOND,
    DATA_WAIT,
    SAMPLES_PER_SECOND,
    SECONDS_LEFT,
    TRAINING,
    VALIDATION,
)

router = APIRouter(prefix="/figures", include_in_schema=False)

#: What the x axis of cards may be.
AXES = ("batches", "epochs", "time")
#: The styles of the lines of a card.
STYLES = ("solid", "dashed", "dotted")
_MOST_TRIALS = 200
_MOST_METRICS = 20
# Each machine and each GPU of a trial has a line of its own.
_MOST_SYSTEM_TRIALS = 20
# The cards of system metrics, with their units; axes of bytes have units of their own.
_SYSTEM_TITLES = {
    "cpu_util_simple": "CPU (%)",
    "cpu_util_trial": "CPU (%)",
    DATA_WAIT: "No batch ready (%)",
    SAMPLES_PER_SECOND: "Samples a second",
    BATCHES_PER_SECOND: "Batches a second",
    "memory_free": "Free memory (GB)",
    "memory_used_percent": "Memory (%)",
    "memory_trial_bytes": "Memory of the trial",
    "disk_throughput_read": "Disk",
    "disk_throughput_write": "Disk",
    "net_throughput_sent": "Network",
    "net_throughput_recv": "Network",
    "gpu_util": "GPU (%)",
    "gpu_free_memory": "Memory of the GPU",
    "gpu_used_memory": "Memory of the GPU",
    "gpu_temperature": "Temperature of the GPU (°C)",
}
_BYTES = {
    "Memory of the trial": "B",
    "Memory of the GPU": "B",
    "Disk": "B/s",
    "Network": "B/s",
}
_FIRST_NAMES = ("loss", "accuracy")


@router.get("/wall")
async def wall(
    master: MasterDep,
    request: Request,
    experiment: int | None = None,
    trial: Annotated[list[int], Query()] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Return the cards of a wall, and the runs beside it.

    Args:
        master: has the system metrics.
        request: the page's request.
        experiment: number of the experiment whose trials are shown; None for those in `trial`.
        trial: numbers of trials.
    """
    rest = Rest(request)
    if experiment is not None:
        trials = (await rest.get(f"/experiments/{experiment}/trials", limit=-1))["trials"]
    else:
        answers = await asyncio.gather(*(rest.get(f"/trials/{number}") for number in dict.fromkeys(trial)))
        trials = [answer["trial"] for answer in answers]
    numbers = list(dict.fromkeys(one["experimentId"] for one in trials)) or (
        [experiment] if experiment else []
    )
    answers = await asyncio.gather(*(rest.get(f"/experiments/{number}") for number in numbers))
    experiments = {answer["experiment"]["id"]: answer["experiment"] for answer in answers}
    if not experiments:
        return reply({"cards": [], "runs": [], "metric": "", "smallerIsBetter": True, "most": _MOST_TRIALS})
    first = experiments[numbers[0]]
    metric = first["searcherMetric"]
    system = await anyio.to_thread.run_sync(_system_cards, master, trials)
    return reply(
        {
            "cards": [*cards(metrics_of(trials), metric), *system],
            "runs": [
                _run(one, experiments[one["experimentId"]], many=len(experiments) > 1) for one in trials
            ],
            "metric": metric,
            "smallerIsBetter": first["config"]["searcher"]["smaller_is_better"],
            "most": _MOST_TRIALS,
        }
    )


@router.get("/lines")
async def lines(
    master: MasterDep,
    trial: Annotated[list[int], Query()] = [],  # noqa: B006
    metric: Annotated[list[str], Query()] = [],  # noqa: B006
    expression: Annotated[list[str], Query()] = [],  # noqa: B006
    x: str = "batches",
    smoothing: Annotated[float, Query(ge=0.0, lt=1.0)] = 0.0,
    log_x: bool = False,
    start: float | None = None,
    end: float | None = None,
    points: Annotated[int, Query(ge=4, le=5000)] = 800,
) -> Response:
    """Return metrics of trials over one axis.

    Args:
        master: has the curves.
        trial: numbers of trials.
        metric: metrics in the form ``group.name``.
        expression: expressions over the metrics of a trial, such as ``val_loss - loss``.
        x: ``batches``, ``epochs`` or ``time`` (seconds since its first run was started).
        smoothing: weight of the moving average, from 0 (none) to below 1; the raw curves are returned too.
        log_x: whether the x axis is logarithmic.
        start: begin of the shown range of the axis; None for all.
        end: end of the shown range.
        points: maximum number of positions.

    Raises:
        InvalidArgumentError: `x` is unknown, there are too many trials or metrics, or an expression is not accepted.
    """
    if x not in AXES:
        raise InvalidArgumentError(f"`x` must be one of {', '.join(AXES)}, received {x!r}.")
    for what, values, most in (
        ("trials", trial, _MOST_TRIALS),
        ("metrics", metric + expression, _MOST_METRICS),
    ):
        if len(values) > most:
            raise InvalidArgumentError(f"At most {most} {what} fit in one card, received {len(values)}.")
    view = {"x": x, "smoothing": smoothing, "log_x": log_x, "start": start, "end": end, "points": points}
    wanted: list[Metric | Expression] = [*map(Metric.of, metric), *map(parse, expression)]
    return reply(await anyio.to_thread.run_sync(card_lines, master, list(dict.fromkeys(trial)), wanted, view))


@router.get("/system")
async def system(
    master: MasterDep,
    trial: Annotated[list[int], Query()] = [],  # noqa: B006 - FastAPI copies it
    metric: Annotated[list[str], Query()] = [],  # noqa: B006
    start: float | None = None,
    end: float | None = None,
    points: Annotated[int, Query(ge=4, le=5000)] = 800,
) -> Response:
    """Return system metrics of trials over the time since the start of each, as `lines` over ``time``.

    Args:
        master: has the samples.
        trial: numbers of trials; of many the first are returned.
        metric: metrics in the form ``group.name``.
        start: begin of the shown range; None for all.
        end: end of the shown range.
        points: maximum number of positions.
    """
    view = {"start": start, "end": end, "points": points}
    numbers = list(dict.fromkeys(trial))[:_MOST_SYSTEM_TRIALS]
    return reply(await anyio.to_thread.run_sync(_system_lines, master, numbers, frozenset(metric), view))


def cards(metrics: Iterable[Metric], searched: str) -> list[dict[str, Any]]:
    """Return the cards of metrics, in their order.

    ``loss`` of training and ``val_loss`` share a card. The searched metric is first, then loss and accuracy, then the
    others by name; names with a slash form sections.

    Args:
        metrics: all metrics that were reported.
        searched: the searcher's metric.
    """
    found: dict[str, list[Metric]] = {}
    for metric in sorted(metrics):
        found.setdefault(metric.name.removeprefix("val_"), []).append(metric)
    first = searched.removeprefix("val_")

    def key(name: str) -> tuple[bool, bool, int, str]:
        place = _FIRST_NAMES.index(name) if name in _FIRST_NAMES else len(_FIRST_NAMES)
        return name != first, "/" in name, place, name

    return [
        {
            "title": name,
            "section": "" if name == first else name.rpartition("/")[0],
            "isSearched": name == first,
            "metrics": [card_metric(metric) for metric in found[name]],
        }
        for name in sorted(found, key=key)
    ]


def _system_lines(
    master: EmbeddedMaster, trial_ids: Sequence[int], keys: frozenset[str], view: Mapping[str, Any]
) -> dict[str, Any]:
    names: list[dict[str, Any]] = []
    curves: list[tuple[Floats, Floats]] = []
    with master.store.reading() as session:
        starts = first_starts(session, trial_ids)
    for trial_id in trial_ids:
        found = master.system_metrics.read(trial_id, most_points=EVERY_POINT)
        for series in found:
            metric = series.metric
            key = f"{metric.group}.{metric.name}"
            if key in keys:
                label = " ".join(filter(None, (metric.name, metric.device, metric.agent)))
                names.append({"trial": trial_id, "metric": key, "label": label, "isRaw": False})
                start = starts.get(trial_id, series.started)
                curves.append((series.times - start.timestamp(), series.values))
    aligned = align(curves, most=view["points"], start=view["start"], end=view["end"])
    lines = [{**name, "y": y} for name, y in zip(names, _values(aligned), strict=True)]
    return {"x": _rounded(aligned.x, 9), "lines": lines, "total": aligned.total}


def _system_cards(master: EmbeddedMaster, trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the cards of the system metrics of some trials."""
    # Not only the newest samples: a script that evaluates at its end takes no batches any more.
    found = {
        (series.metric.group, series.metric.name)
        for trial in trials[:_MOST_SYSTEM_TRIALS]
        for series in master.system_metrics.read(trial["id"], most_points=4)
        # The time left is for now: its curve says nothing.
        if series.metric.name != SECONDS_LEFT
    }
    titles: dict[str, list[tuple[str, str]]] = {}
    for group, name in sorted(found):
        titles.setdefault(_SYSTEM_TITLES.get(name, name), []).append((group, name))
    return [
        {
            "title": title,
            "unit": _BYTES.get(title, ""),
            "section": "System",
            "source": "/figures/system",
            "isSearched": False,
            "metrics": [
                {"key": f"{group}.{name}", "group": group, "name": name, "style": style}
                for (group, name), style in zip(members, itertools.cycle(STYLES))
            ],
        }
        for title, members in titles.items()
    ]


def card_metric(metric: Metric) -> dict[str, str]:
    """Return a metric as a line of a card."""
    style = {TRAINING: "solid", VALIDATION: "dashed"}.get(metric.group, "dotted")
    return {"key": metric.key, "group": metric.group, "name": metric.name, "style": style}


def _run(trial: Mapping[str, Any], experiment: Mapping[str, Any], *, many: bool) -> dict[str, Any]:
    name = f"Trial {trial['id']}"
    return {
        "id": trial["id"],
        "name": f"{name} · {experiment['name']}" if many else name,
        "state": trial["state"],
        "best": finite(trial["searcherMetricValue"]),
        "metrics": _last_values(trial),
        "hparams": {key: _plain(value) for key, value in flat_hparams(trial["hparams"])},
        "labels": experiment["labels"],
        "batches": trial["totalBatchesProcessed"],
        "start": trial["startTime"],
        "duration": trial["wallClockTime"],
    }


def _last_values(trial: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the last value of each metric by its name; a validation counts before a training metric."""
    found = {}
    for metric in sorted(metrics_of([trial]), key=lambda metric: metric.group == VALIDATION):
        last = trial["summaryMetrics"][metric.summary_group][metric.name]["last"]
        found[metric.name] = finite(float(last))
    return found


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def card_lines(
    master: EmbeddedMaster,
    trial_ids: Sequence[int],
    wanted: Sequence[Metric | Expression],
    view: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the curves of a card, as `lines` does; `view` has its arguments from `x` on."""
    named: list[dict[str, Any]] = []
    curves: list[tuple[Floats, Floats]] = []
    weights = (0.0, view["smoothing"]) if view["smoothing"] else (0.0,)
    with master.store.reading() as session:
        starts = first_starts(session, trial_ids) if view["x"] == "time" else {}
    for one in wanted:
        calculated = _calculated(master, trial_ids, one) if isinstance(one, Expression) else []
        for weight in weights:
            if isinstance(one, Expression):
                key = one.text
                found = [replace(series, values=smooth(series.values, weight)) for series in calculated]
            else:
                key = one.key
                found = _whole(master, trial_ids, one, smoothing=weight)
            for series in found:
                named.append(
                    {"trial": series.trial_id, "metric": key, "isRaw": len(weights) > 1 and not weight}
                )
                curves.append((_axis(series, view["x"], starts), series.values))
    aligned = align(curves, most=view["points"], start=view["start"], end=view["end"], log_x=view["log_x"])
    values = _values(aligned)
    return {
        "x": np.rint(aligned.x).astype(np.int64).tolist()
        if view["x"] == "batches"
        else _rounded(aligned.x, 9),
        "lines": [{**name, "y": y} for name, y in zip(named, values, strict=True)],
        "total": aligned.total,
    }


def _whole(
    master: EmbeddedMaster, trial_ids: Sequence[int], metric: Metric, *, smoothing: float = 0.0
) -> list[Series]:
    """Return the exact curves of a metric."""
    return master.curves.read(
        trial_ids, group=metric.group, metric=metric.name, most_points=EVERY_POINT, smoothing=smoothing
    )


def _calculated(master: EmbeddedMaster, trial_ids: Sequence[int], expression: Expression) -> list[Series]:
    """Return an expression's curve of each trial that has all its metrics."""
    summaries = master.curves.summaries(trial_ids)
    known = {
        trial_id: {(metric.group, metric.name) for metric in metrics_of([{"summaryMetrics": summary}])}
        for trial_id, summary in summaries.items()
    }
    check_names(expression, set().union(*known.values()))
    read: dict[Name, dict[int, Series]] = {}
    result = []
    for trial_id in trial_ids:
        # A name may mean metrics of different groups in different trials.
        meant = {text: metric_of(text, known.get(trial_id, ())) for text in expression.names}
        named = {}
        for text, metric in meant.items():
            if metric is not None and metric not in read:
                read[metric] = {one.trial_id: one for one in _whole(master, trial_ids, Metric(*metric))}
            if metric is not None and trial_id in read[metric]:
                named[text] = read[metric][trial_id]
        if len(named) == len(meant):
            result.append(evaluate(expression, named))
    return [series for series in result if len(series.values)]


def _axis(series: Series, x: str, starts: Mapping[int, datetime]) -> Floats:
    if x == "time":
        # Without the time in the queue.
        waited = starts.get(series.trial_id, series.started) - series.started
        return series.seconds - waited.total_seconds()
    if x == "epochs":
        return np.full(len(series.batches), np.nan) if series.epochs is None else series.epochs
    return series.batches.astype(np.float64)


def _values(aligned: Aligned) -> list[list[Any]]:
    """Return values as JSON: null where a curve has no value, and "NaN" where its value is not finite."""
    result: list[list[Any]] = []
    for y, present in zip(aligned.y, aligned.present, strict=True):
        finite = np.isfinite(y)
        cells: list[Any] = _rounded(np.where(finite, y, 0.0))
        for place in np.flatnonzero(~(present & finite)):
            cells[place] = "NaN" if present[place] else None
        result.append(cells)
    return result


def _rounded(values: Floats, digits: int = 6) -> list[float]:
    """Return numbers with few significant digits, integers as integers: the picture has no more."""
    texts = (f"{value:.{digits}g}" for value in values.tolist())
    return [int(text) if text.lstrip("-").isdigit() else float(text) for text in texts]
