"""The pages of trials: curves, runs, checkpoints and the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.display import flat_hparams, parse_time
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply
from det_keras.master.web.alerts import outcome, runs_of, trial_alerts
from det_keras.master.web.experiments import kept, latest_first
from det_keras.master.web.findings import curve_findings
from det_keras.master.web.metric_choice import metrics_of
from det_keras.master.web.plotting.rungs import stopped_at
from det_keras.master.web.provenance.model import model_source, shown_model
from det_keras.master.web.provenance.record import shown_record
from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest
from det_keras.master.web.teams.audit import last_changes

router = APIRouter(include_in_schema=False)


@router.get("/trials/{trial_id}")
async def overview(request: Request, master: MasterDep, trial_id: int) -> Response:
    """Show a trial, its curves, runs and checkpoints."""
    rest = Rest(request)
    shown = await _trial(rest, trial_id)
    trial = shown["trial"]
    runs, stored, changes, origin = await asyncio.gather(
        runs_of(rest, trial),
        rest.get(f"/trials/{trial_id}/checkpoints"),
        last_changes(rest, "trial", trial_id),
        rest.get(f"/trials/{trial_id}/provenance"),
    )
    checkpoints = kept(latest_first(stored["checkpoints"]))
    return await page(
        request,
        "trial.html",
        **shown,
        tab="overview",
        alerts=await trial_alerts(master, trial, shown["experiment"], runs, checkpoints),
        findings=await anyio.to_thread.run_sync(curve_findings, master, trial, shown["experiment"]),
        hparams=list(flat_hparams(trial["hparams"])),
        has_metrics=bool(metrics_of([trial])),
        runs=[
            {**run, "outcome": outcome(run), "span": span}
            for run, span in zip(runs, _spans(runs), strict=True)
        ],
        checkpoints=checkpoints,
        changes=changes,
        provenance=shown_record(origin["provenance"]),
        provenance_live=True,
        model_source=model_source(origin["provenance"], trial_id),
    )


@router.get("/figures/model")
async def model_data(request: Request, trial: int) -> Response:
    """Return the layers of a trial's model, for the drawing; null if they are not recorded."""
    origin = await Rest(request).get(f"/trials/{trial}/provenance")
    return reply({"model": shown_model(origin["provenance"])})


@router.get("/trials/{trial_id}/logs")
async def logs(request: Request, trial_id: int) -> Response:
    """Show the log of a trial, live."""
    shown = await _trial(Rest(request), trial_id)
    return await page(request, "trial_logs.html", **shown, tab="logs")


@router.get("/experiments/{experiment_id}/trials/{trial_id}")
@router.get("/experiments/{experiment_id}/trials/{trial_id}/{_tab}")
async def of_experiment(request: Request, master: MasterDep, experiment_id: int, trial_id: int) -> Response:
    """Show a trial at the address that Determined uses for it.

    Args:
        request: the page's request.
        master: has the curves.
        experiment_id: not used.
        trial_id: number of the trial.
    """
    return await overview(request, master, trial_id)


async def _trial(rest: Rest, trial_id: int) -> dict[str, Any]:
    trial = (await rest.get(f"/trials/{trial_id}"))["trial"]
    place = f"/experiments/{trial['experimentId']}"
    shown, rungs = await asyncio.gather(rest.get(place), rest.get(f"{place}/searcher/rungs"))
    stopped = stopped_at([trial], rungs["brackets"]).get(trial["id"], "")
    return {"trial": trial, "experiment": shown["experiment"], "stopped": stopped}


def _spans(runs: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return the begin and the length of each run, in percent of the time of all of them."""
    now = datetime.now(timezone.utc)
    times = [(parse_time(run["startTime"]) or now, parse_time(run["endTime"]) or now) for run in runs]
    if not times:
        return []
    first, last = min(start for start, _ in times), max(end for _, end in times)
    whole = max((last - first).total_seconds(), 1e-6)
    return [
        (100 * (start - first).total_seconds() / whole, 100 * (end - start).total_seconds() / whole)
        for start, end in times
    ]
