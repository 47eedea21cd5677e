"""The data of tables: experiments, and the trials of an experiment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras import display
from det_keras.display import flat_hparams
from det_keras.master.server.responses import reply
from det_keras.master.web.experiments import varied
from det_keras.master.web.metric_choice import finite, metrics_of
from det_keras.master.web.plotting.plots import best_trials_first
from det_keras.master.web.plotting.rungs import stopped_at
from det_keras.master.web.rendering import state_kind
from det_keras.master.web.rest import Rest
from det_keras.protocol.states import ERROR, named

router = APIRouter(prefix="/tables", include_in_schema=False)

# So that the first page of a long list is there at once.
_CHUNK = 1000
_METRIC_FORMS = (("last", "last"), ("min", "smallest"), ("max", "largest"))


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: its name in the page's address and in filters.
        title: its head.
        kind: ``id``, ``name``, ``state``, ``progress``, ``number``, ``metric``, ``duration``, ``size``, ``time``,
            ``labels`` or ``text``; decides how cells are shown and sorted.
        better: ``min`` or ``max``: which values are best, so that sorting begins with them.
        is_shown: whether it is shown unless the user hides it.
    """

    key: str
    title: str
    kind: str
    better: str = ""
    is_shown: bool = True


_EXPERIMENT_COLUMNS = (
    Column("id", "Id", "id"),
    Column("name", "Name", "name"),
    Column("state", "State", "state"),
    Column("best", "Best metric", "metric", "max"),
    Column("metric", "Metric", "text"),
    Column("progress", "Progress", "progress"),
    Column("trials", "Trials", "number"),
    Column("owner", "Owner", "text"),
    Column("started", "Started", "time"),
    Column("duration", "Duration", "duration"),
    Column("searcher", "Searcher", "text", is_shown=False),
    Column("checkpoints", "Checkpoints", "size", is_shown=False),
)


@router.get("/experiments")
async def experiments(request: Request, archived: bool = False, offset: int = 0) -> Response:
    """Return a part of the list of experiments, latest first.

    Args:
        request: the page's request.
        archived: whether to list archived experiments instead.
        offset: index of the first experiment.
    """
    answer = await Rest(request).get(
        "/experiments",
        orderBy="ORDER_BY_DESC",
        archived=str(archived).lower(),
        offset=offset,
        limit=_CHUNK,
    )
    shown = answer["experiments"]
    smaller = sum(bool(one["config"]["searcher"]["smaller_is_better"]) for one in shown)
    columns = [
        Column("best", "Best metric", "metric", "min" if 2 * smaller > len(shown) else "max")
        if column.key == "best"
        else column
        for column in _EXPERIMENT_COLUMNS
    ]
    return _table(columns, map(_experiment, shown), total=answer["pagination"]["total"])


@router.get("/trials")
async def trials(request: Request, experiment: int) -> Response:
    """Return the trials of an experiment.

    Args:
        request: the page's request.
        experiment: number of the experiment.
    """
    rest = Rest(request)
    shown, found, rungs = await asyncio.gather(
        rest.get(f"/experiments/{experiment}"),
        rest.get(f"/experiments/{experiment}/trials", limit=-1),
        rest.get(f"/experiments/{experiment}/searcher/rungs"),
    )
    stopped = stopped_at(found["trials"], rungs["brackets"])
    return await anyio.to_thread.run_sync(_trials, shown["experiment"], found["trials"], stopped)


def _experiment(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": shown["id"],
        "name": shown["name"] or "unnamed",
        "labels": shown["labels"],
        "description": shown["description"],
        "state": _state(shown["state"]),
        "progress": shown["progress"],
        "best": finite(shown["bestTrialSearcherMetric"]),
        "metric": shown["searcherMetric"],
        "trials": shown["numTrials"],
        "owner": shown["username"],
        "started": shown["startTime"],
        "duration": shown["duration"],
        "searcher": shown["searcherType"],
        "checkpoints": int(shown["checkpointSize"]),
        "isOver": shown["endTime"] is not None,
    }


def _trials(
    experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], stopped: Mapping[int, str]
) -> Response:
    flat = {trial["id"]: dict(flat_hparams(trial["hparams"])) for trial in trials}
    names = list(dict.fromkeys(name for hparams in flat.values() for name in hparams))
    differing = set(varied(trials))
    metrics = sorted(metrics_of(trials))
    columns = [
        Column("id", "Trial", "id"),
        Column("state", "State", "state"),
        Column("best", f"Best {experiment['searcherMetric']}", "metric", _better(experiment)),
        Column("progress", "Progress", "progress", is_shown=any(not trial["endTime"] for trial in trials)),
        *(Column(name, name, "hparam", is_shown=name in differing) for name in names),
        Column("batches", "Batches", "number"),
        Column("duration", "Duration", "duration"),
        Column("restarts", "Restarts", "number", is_shown=any(trial["restarts"] for trial in trials)),
        Column("started", "Started", "time", is_shown=False),
        Column("checkpoints", "Checkpoints", "size", is_shown=False),
        *(
            Column(
                f"{form}.{metric.key}", f"{metric.name} ({metric.group}, {title})", "metric", is_shown=False
            )
            for metric in metrics
            for form, title in _METRIC_FORMS
        ),
    ]
    best = experiment["bestTrialId"]

    def row(trial: Mapping[str, Any]) -> dict[str, Any]:
        cells = {
            "id": trial["id"],
            "state": _state(trial["state"], stopped.get(trial["id"])),
            "best": finite(trial["searcherMetricValue"]),
            # Without a report its length may be unknown.
            "progress": None if trial["endTime"] else trial["progress"] or None,
            **flat[trial["id"]],
            "batches": trial["totalBatchesProcessed"],
            "duration": trial["wallClockTime"] or None,
            "restarts": trial["restarts"],
            "started": trial["startTime"],
            "checkpoints": int(trial["totalCheckpointSize"]),
            "isBest": trial["id"] == best and trial["state"] != named(ERROR),
            "isOver": trial["endTime"] is not None,
        }
        for metric in metrics:
            summary = (trial["summaryMetrics"] or {}).get(metric.summary_group, {}).get(metric.name)
            if summary is not None and summary["type"] == "number":
                for form, _ in _METRIC_FORMS:
                    cells[f"{form}.{metric.key}"] = finite(float(summary[form]))
        return cells

    return _table(columns, map(row, best_trials_first(trials, experiment)), total=len(trials))


def _better(experiment: Mapping[str, Any]) -> str:
    return "min" if experiment["config"]["searcher"]["smaller_is_better"] else "max"


def _state(state: str, text: str | None = None) -> list[str]:
    """Return the kind of a state, and its text."""
    if text is not None:
        return ["stopping", text]
    return [state_kind(state), display.state_text(state).lower().replace("_", " ")]


def _table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], *, total: int) -> Response:
    """Return a table whose rows are lists of cells, which takes a third of the bytes of objects."""
    keys = [column.key for column in columns]
    more = ("isBest", "isOver", "labels", "description")
    cells = [[*(row.get(key) for key in keys), *(row.get(key) for key in more)] for row in rows]
    return reply(
        {"columns": [asdict(column) for column in columns], "more": more, "rows": cells, "total": total}
    )
