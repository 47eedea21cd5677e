"""The page that compares experiments or trials: their curves and hyperparameters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from det_keras.display import flat_hparams, number_text
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.web.metric_choice import metrics_of
from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_MOST = 50


@dataclass(frozen=True)
class Difference:
    """One hyperparameter in the comparison.

    Attributes:
        name: name of the hyperparameter.
        values: one text per trial; None for a trial without the hyperparameter.
        differs: whether they are not all the same.
    """

    name: str
    values: list[str | None]
    differs: bool


@router.get("/compare")
async def side_by_side(
    request: Request,
    trial: Annotated[list[int], Query()] = [],  # noqa: B006 - FastAPI copies it
    experiment: Annotated[list[int], Query()] = [],  # noqa: B006
) -> Response:
    """Compare trials; an experiment is represented by its best trial.

    Args:
        request: the page's request.
        trial: numbers of trials.
        experiment: numbers of experiments.

    Raises:
        InvalidArgumentError: there are more than 50.
    """
    rest = Rest(request)
    if len(trial) + len(experiment) > _MOST:
        raise InvalidArgumentError(f"At most {_MOST} trials can be compared at once.")
    best = await asyncio.gather(*(_best_trial(rest, number) for number in dict.fromkeys(experiment)))
    wanted = dict.fromkeys([*trial, *(trial_id for trial_id in best if trial_id is not None)])
    trials = [(await rest.get(f"/trials/{trial_id}"))["trial"] for trial_id in wanted]
    experiments = {}
    for number in dict.fromkeys(shown["experimentId"] for shown in trials):
        experiments[number] = (await rest.get(f"/experiments/{number}"))["experiment"]
    missing = [number for number, found in zip(dict.fromkeys(experiment), best, strict=True) if found is None]
    return await page(
        request,
        "compare.html",
        trials=trials,
        experiments=experiments,
        missing=missing,
        differences=_differences(trials),
        has_metrics=bool(metrics_of(trials)),
    )


async def _best_trial(rest: Rest, experiment_id: int) -> int | None:
    """Return the best trial of an experiment, or its first if no trial has validated."""
    shown = (await rest.get(f"/experiments/{experiment_id}"))["experiment"]
    found: int | None = shown["bestTrialId"] or next(iter(shown["trialIds"]), None)
    return found


def _differences(trials: Iterable[dict[str, Any]]) -> list[Difference]:
    """Return all hyperparameters; those that differ come first."""
    columns = [dict(flat_hparams(trial["hparams"])) for trial in trials]
    names = dict.fromkeys(name for column in columns for name in column)
    lines = []
    for name in names:
        values = [number_text(column[name]) if name in column else None for column in columns]
        lines.append(Difference(name, values, len(set(values)) > 1))
    return sorted(lines, key=lambda line: not line.differs)
