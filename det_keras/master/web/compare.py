"""The page that compares experiments or trials: curves and hyperparameters; of two also config, code and packages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from det_keras.config.secrets import without_secret_variables
from det_keras.config.yaml_text import dump_yaml
from det_keras.display import flat_hparams, number_text
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.web.experiments import files_of_archive
from det_keras.master.web.findings import seed_finding
from det_keras.master.web.metric_choice import metrics_of
from det_keras.master.web.provenance.comparison import Comparison, Side, compare
from det_keras.master.web.provenance.record import packages_of
from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest

router = APIRouter(include_in_schema=False)

_MOST = 50
_COMPARED_AT_ONCE = 2


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
    differences = _differences(trials)
    missing = [number for number, found in zip(dict.fromkeys(experiment), best, strict=True) if found is None]
    return await page(
        request,
        "compare.html",
        trials=trials,
        experiments=experiments,
        missing=missing,
        differences=differences,
        seeds=seed_finding(trials, experiments, [line.name for line in differences if line.differs]),
        has_metrics=bool(metrics_of(trials)),
        compared=await _compared(rest, list(dict.fromkeys([*experiment, *experiments])), trials),
    )


async def _compared(
    rest: Rest, numbers: Sequence[int], trials: Sequence[Mapping[str, Any]]
) -> Comparison | None:
    """Return what differs between experiments; None unless there are two."""
    if len(numbers) != _COMPARED_AT_ONCE:
        return None
    answers = await asyncio.gather(
        *(rest.get(f"/experiments/{number}{path}") for number in numbers for path in ("", "/model_def"))
    )
    packages = await _packages(rest, numbers, trials)
    return await anyio.to_thread.run_sync(_difference, numbers, answers, packages)


def _difference(
    numbers: Sequence[int], answers: Sequence[Mapping[str, Any]], packages: Sequence[Sequence[str]]
) -> Comparison:
    sides = [
        Side(
            number,
            dump_yaml(without_secret_variables(described["experiment"]["config"])),
            files_of_archive(submitted["b64Tgz"]),
            installed,
        )
        for number, described, submitted, installed in zip(
            numbers, answers[::2], answers[1::2], packages, strict=True
        )
    ]
    return compare(*sides)


async def _packages(
    rest: Rest, numbers: Sequence[int], trials: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
    """Return the packages with which two experiments train, or else those with which they were submitted."""
    first = {trial["experimentId"]: trial["id"] for trial in reversed(trials)}
    kinds = (
        [f"/trials/{first[number]}" for number in numbers if number in first],
        [f"/experiments/{number}" for number in numbers],
    )
    for paths in kinds:
        answers = await asyncio.gather(*(rest.get(f"{path}/provenance") for path in paths))
        found = [packages_of(answer["provenance"]) for answer in answers]
        if len(found) == len(numbers) and all(found):
            return found
    return [[] for _ in numbers]


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
