"""The page of a search: what it found, and how."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.config import Space
from det_keras.config.searching.hyperparameters import Categorical, Const, IntRange
from det_keras.config.yaml_text import dump_yaml
from det_keras.display import flat_hparams, number_text, parse_time
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply
from det_keras.master.tasks.allocations import runs_of_experiment
from det_keras.master.web.experiments import experiment_head, trials_of
from det_keras.master.web.metric_choice import finite
from det_keras.master.web.plotting.rungs import values_at
from det_keras.master.web.plotting.searched import search_plots
from det_keras.master.web.rendering import page, state_kind
from det_keras.master.web.rest import Rest
from det_keras.protocol.states import bare

router = APIRouter(include_in_schema=False)

_MOST_CHIPS = 60
_UNIT_OF_ONE = {"epochs": "epoch", "batches": "batch", "records": "record"}


@dataclass(frozen=True)
class Leaf:
    """A hyperparameter of a trial that the user adds.

    Attributes:
        name: its dotted name.
        values: those of a list; None for a range.
        is_whole: whether it is a whole number.
        best: its value in the best trial; None if there is none.
    """

    name: str
    values: Sequence[Any] | None
    is_whole: bool
    best: Any


@router.get("/experiments/{experiment_id}/search")
async def search(request: Request, experiment_id: int) -> Response:
    """Show the results of an experiment's search."""
    rest = Rest(request)
    shown, trials, searcher = await asyncio.gather(
        experiment_head(rest, experiment_id),
        trials_of(rest, experiment_id),
        rest.get(f"/experiments/{experiment_id}/searcher"),
    )
    best = next((trial for trial in trials if trial["id"] == shown["experiment"]["bestTrialId"]), None)
    return await page(
        request,
        "experiment_search.html",
        **shown,
        tab="search",
        trials=trials,
        best=best,
        best_yaml="" if best is None else dump_yaml(dict(best["hparams"])),
        ladders=[_ladder(bracket) for bracket in searcher["brackets"]],
        steered=_steered(shown["experiment"], best),
        narrowed=_narrowed(searcher),
        unit=searcher["unit"],
        unit_of_one=_UNIT_OF_ONE.get(searcher["unit"], searcher["unit"]),
        lengths=sorted({rung["length"] for bracket in searcher["brackets"] for rung in bracket["rungs"]}),
    )


@router.get("/figures/search")
async def search_data(master: MasterDep, request: Request, experiment: int, rung: int = 0) -> Response:
    """Return the data of the plots of a search.

    Args:
        master: has the runs of the trials.
        request: the page's request.
        experiment: number of the experiment.
        rung: length of the rung at which trials are compared; 0 for the best value of each.
    """
    rest = Rest(request)
    shown, trials, rungs = await asyncio.gather(
        rest.get(f"/experiments/{experiment}"),
        trials_of(rest, experiment),
        rest.get(f"/experiments/{experiment}/searcher/rungs"),
    )
    return await anyio.to_thread.run_sync(_data, master, shown["experiment"], trials, rungs, rung)


def _data(
    master: EmbeddedMaster,
    experiment: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    rungs: Mapping[str, Any],
    rung: int,
) -> Response:
    values = values_at(master, experiment, trials, rungs, rung) if rung else None
    found = search_plots(experiment, trials, rungs["brackets"], values=values)
    return reply({**found, "trials": _rows(trials, found), "runs": _runs(master, experiment["id"])})


def _rows(trials: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all trials, also those that have no value to compare."""
    names = [axis["name"] for axis in found["axes"]]
    known = {row["id"]: row for row in found["trials"]}
    rows = []
    for trial in trials:
        hparams = dict(flat_hparams(trial["hparams"]))
        row = known.get(trial["id"]) or {"id": trial["id"], "value": None, "stopped": ""}
        start, end = (
            parse_time(trial["startTime"]),
            parse_time(trial["endTime"]) or datetime.now(timezone.utc),
        )
        rows.append(
            {
                **row,
                "best": finite(trial["searcherMetricValue"]),
                "kind": "stopping" if row["stopped"] else state_kind(trial["state"]),
                "state": row["stopped"] or bare(trial["state"]).lower(),
                "hparams": [hparams.get(name) for name in names],
                "start": start.timestamp() if start else None,
                "end": end.timestamp(),
            }
        )
    return rows


def _runs(master: EmbeddedMaster, experiment_id: int) -> list[dict[str, Any]]:
    """Return which slots the trials had, and when."""
    with master.store.reading() as session:
        runs = runs_of_experiment(session, experiment_id)
    now = datetime.now(timezone.utc)
    return [
        {
            "trial": run.trial_id,
            "start": run.start.timestamp(),
            "end": (run.end or now).timestamp(),
            "slots": [f"{share.node} {slot}" for share in run.shares for slot in share.slot_ids],
        }
        for run in runs
    ]


def _steered(experiment: Mapping[str, Any], best: Mapping[str, Any] | None) -> list[Leaf]:
    """Return the hyperparameters that vary, if the search goes on."""
    if experiment["endTime"] is not None or experiment["unmanaged"]:
        return []
    known = {} if best is None else dict(flat_hparams(best["hparams"]))
    return [
        Leaf(
            name,
            leaf.vals if isinstance(leaf, Categorical) else None,
            isinstance(leaf, IntRange),
            known.get(name),
        )
        for name, leaf in Space.parse(experiment["config"]["hyperparameters"]).leaves()
        if not isinstance(leaf, Const)
    ]


def _narrowed(searcher: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the user left of the space, by name."""
    changed = {name for step in searcher["narrowings"] for name in step}
    return [
        (name, _text_of(leaf.to_dict()))
        for name, leaf in Space.parse(searcher["hyperparameters"]).leaves()
        if name in changed
    ]


def _text_of(leaf: Mapping[str, Any]) -> str:
    if "vals" in leaf:
        return ", ".join(map(number_text, leaf["vals"]))
    if "val" in leaf:
        return number_text(leaf["val"])
    base = leaf.get("base")
    ends = (leaf["minval"], leaf["maxval"])
    return " to ".join(number_text(end if base is None else base**end) for end in ends)


def _ladder(bracket: Mapping[str, Any]) -> dict[str, Any]:
    """Return a bracket, the longest rung first, each with the trials that reached it and whether they moved on."""
    steps = []
    above: set[int] = set()
    for rung in reversed(bracket["rungs"]):
        reached = [result["trialId"] for result in rung["results"]]
        chips = [
            {"id": result["trialId"], "metric": result["metric"], "moved": result["trialId"] in above}
            for result in rung["results"][:_MOST_CHIPS]
        ]
        steps.append({"length": rung["length"], "count": len(reached), "chips": chips})
        above = set(reached)
    return {"trials": bracket["trials"], "steps": steps}
