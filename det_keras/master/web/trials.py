"""The pages of trials: curves, runs, checkpoints and the log."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.display import flat_hparams
from det_keras.master.web.experiments import kept, latest_first
from det_keras.master.web.metric_choice import metric_choices, paired
from det_keras.master.web.plots import runs_of
from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


@router.get("/trials/{trial_id}")
async def overview(request: Request, trial_id: int) -> Response:
    """Show a trial, its curves, runs and checkpoints."""
    rest = Rest(request)
    shown = await _trial(rest, trial_id)
    trial = shown["trial"]
    runs, stored = await asyncio.gather(runs_of(rest, trial), rest.get(f"/trials/{trial_id}/checkpoints"))
    checkpoints = kept(latest_first(stored["checkpoints"]))
    metrics = metric_choices([trial], shown["experiment"]["searcherMetric"])
    return await page(
        request,
        "trial.html",
        **shown,
        tab="overview",
        hparams=list(flat_hparams(trial["hparams"])),
        plots=paired(metrics),
        runs=runs,
        checkpoints=checkpoints,
    )


@router.get("/trials/{trial_id}/logs")
async def logs(request: Request, trial_id: int) -> Response:
    """Show the log of a trial, live."""
    shown = await _trial(Rest(request), trial_id)
    return await page(request, "trial_logs.html", **shown, tab="logs")


@router.get("/experiments/{experiment_id}/trials/{trial_id}")
@router.get("/experiments/{experiment_id}/trials/{trial_id}/{_tab}")
async def of_experiment(request: Request, experiment_id: int, trial_id: int) -> Response:
    """Show a trial at the address that Determined uses for it.

    Args:
        request: the page's request.
        experiment_id: not used.
        trial_id: number of the trial.
    """
    return await overview(request, trial_id)


async def _trial(rest: Rest, trial_id: int) -> dict[str, Any]:
    trial = (await rest.get(f"/trials/{trial_id}"))["trial"]
    experiment = (await rest.get(f"/experiments/{trial['experimentId']}"))["experiment"]
    return {"trial": trial, "experiment": experiment}
