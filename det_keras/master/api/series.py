"""Metrics of several trials, downsampled for plots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from det_keras.master.database.lookups import find_trial
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.reports.series import Series
from det_keras.master.serializers.trials import trial_shapes
from det_keras.master.server.calls import MasterDep, choice
from det_keras.master.server.responses import reply
from det_keras.protocol.metrics import TRAINING, VALIDATION
from det_keras.protocol.values import timestamp

router = APIRouter(prefix="/api/v1/trials")

_DEFAULT_POINTS = 200
_MOST_POINTS = 100_000
_TYPES = ("UNSPECIFIED", "TRAINING", "VALIDATION", "PROFILING")
_GROUP_OF_TYPE = {"TRAINING": TRAINING, "VALIDATION": VALIDATION}


@router.get("/time-series")
def compare(
    master: MasterDep,
    trial_ids: Annotated[
        list[int], Query(alias="trialIds", description="The trials, in the order of the response.")
    ] = [],  # noqa: B006 - FastAPI copies it
    metric_names: Annotated[
        list[str], Query(alias="metricNames", description="Names of metrics in `group` or `metricType`.")
    ] = [],  # noqa: B006
    metric_ids: Annotated[
        list[str], Query(alias="metricIds", description="Metrics in the form `group.name`.")
    ] = [],  # noqa: B006
    group: Annotated[str, Query(description="The group of `metricNames`.")] = "",
    metric_type: Annotated[str, Query(alias="metricType")] = "METRIC_TYPE_UNSPECIFIED",
    max_points: Annotated[
        int,
        Query(alias="maxDatapoints", ge=0, le=_MOST_POINTS, description="Points per curve; 0 for 200."),
    ] = 0,
    start_batches: Annotated[
        int, Query(alias="startBatches", ge=0, lt=1 << 63, description="Earlier points are omitted.")
    ] = 0,
    end_batches: Annotated[
        int,
        Query(alias="endBatches", ge=0, lt=1 << 63, description="Later points are omitted; 0 for no end."),
    ] = 0,
    smoothing: Annotated[
        float,
        Query(
            ge=0.0, lt=1.0, description="Weight of the moving average; 0 for none. Not in Determined's API."
        ),
    ] = 0.0,
) -> Response:
    """Return curves of metrics, each downsampled to `maxDatapoints` points that look the same."""
    if end_batches and end_batches <= start_batches:
        raise InvalidArgumentError("`endBatches` must be above `startBatches`.")
    wanted = _wanted(metric_ids, metric_names, _groups(group, metric_type))
    view: dict[str, Any] = {
        # A curve needs at least its ends and extremes.
        "most_points": max(4, max_points or _DEFAULT_POINTS),
        "smoothing": smoothing,
        "start_batches": start_batches,
        "end_batches": end_batches or None,
    }
    with master.store.reading() as session:
        rows = [find_trial(session, trial_id) for trial_id in dict.fromkeys(trial_ids)]
        trials: dict[int, dict[str, Any]] = {
            shape["id"]: {"trial": shape, "metrics": []} for shape in trial_shapes(session, rows)
        }
    for name, metrics in wanted.items():
        for trial_id, points in _points(master, list(trials), name, metrics, view).items():
            trials[trial_id]["metrics"].append({"data": points, "group": name, "type": _type_of(name)})
    return reply({"trials": list(trials.values())})


def _groups(group: str, metric_type: str) -> list[str]:
    kind = choice(metric_type, "METRIC_TYPE_", _TYPES)
    if group:
        return [group]
    if kind == "PROFILING":
        raise InvalidArgumentError("Use `group` for metrics of a profiler.")
    return [_GROUP_OF_TYPE[kind]] if kind in _GROUP_OF_TYPE else [TRAINING, VALIDATION]


def _wanted(ids: Sequence[str], names: Sequence[str], groups: Sequence[str]) -> Mapping[str, list[str]]:
    """Return the names of the requested metrics, by group."""
    result: dict[str, list[str]] = defaultdict(list)
    for metric_id in ids:
        group, dot, name = metric_id.partition(".")
        if not (group and dot and name):
            raise InvalidArgumentError(f"{metric_id!r} in `metricIds` is not in the form group.metric_name.")
        result[group].append(name)
    for group in groups if names else ():
        result[group] += names
    if not result:
        raise InvalidArgumentError("`metricNames` or `metricIds` must name metrics.")
    return {group: list(dict.fromkeys(names)) for group, names in result.items()}


def _points(
    master: EmbeddedMaster,
    trial_ids: Sequence[int],
    group: str,
    names: Sequence[str],
    view: Mapping[str, Any],
) -> dict[int, list[dict[str, Any]]]:
    """Return the points of each trial that has any; the metrics of one report are one point."""
    found: dict[int, dict[tuple[int, float], dict[str, Any]]] = defaultdict(dict)
    for name in names:
        for series in master.curves.read(trial_ids, group=group, metric=name, **view):
            _join(found[series.trial_id], series, name)
    return {trial_id: [points[key] for key in sorted(points)] for trial_id, points in found.items()}


def _join(points: dict[tuple[int, float], dict[str, Any]], series: Series, name: str) -> None:
    epochs = [None] * len(series.values) if series.epochs is None else series.epochs.tolist()
    columns = (series.batches.tolist(), series.seconds.tolist(), epochs, series.values.tolist())
    for batches, seconds, epoch, value in zip(*columns, strict=True):
        point = points.get((batches, seconds))
        if point is None:
            time = timestamp(series.started + timedelta(seconds=seconds))
            # NaN if this report had no epoch.
            point = {
                "batches": batches,
                "time": time,
                "epoch": epoch if epoch == epoch else None,
                "values": {},
            }
            points[batches, seconds] = point
        point["values"][name] = value


def _type_of(group: str) -> str:
    for name, known in _GROUP_OF_TYPE.items():
        if group == known:
            return f"METRIC_TYPE_{name}"
    return "METRIC_TYPE_UNSPECIFIED"
