"""The rungs of an adaptive search, and the trials that reached them. Not in Determined's API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy import select
from starlette.responses import Response

from det_keras.config import ExperimentConfig
from det_keras.master.database.lookups import config_of, find_experiment
from det_keras.master.database.models import TrialRow
from det_keras.master.experiments.search_state import read_searcher
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply
from det_keras.search.base import WORST

router = APIRouter(prefix="/api/v1/experiments")


@router.get("/{experiment_id}/searcher/rungs")
def rungs(master: MasterDep, experiment_id: int) -> Response:
    """Return the trials that reached each rung with their metrics, best first; no brackets if a search has no rungs."""
    with master.store.reading() as session:
        experiment = find_experiment(session, experiment_id)
        query = select(TrialRow.request_id, TrialRow.id).where(TrialRow.experiment_id == experiment_id)
        trial_ids = {row.request_id: row.id for row in session.execute(query)}
        config, searcher = config_of(experiment), read_searcher(session, experiment)
    # In the search, smaller is always better.
    sign = 1.0 if config.searcher.smaller_is_better else -1.0
    brackets: dict[int, dict[str, Any]] = {}
    for rung in searcher.method.filled_rungs():
        results = [
            {"trialId": trial_ids[request_id], "metric": None if metric >= WORST else sign * metric}
            for request_id, metric in rung.results
            if request_id in trial_ids
        ]
        shown = brackets.setdefault(rung.bracket, {"trials": rung.trials, "rungs": []})
        shown["rungs"].append({"length": rung.length, "results": results})
    return reply({"unit": _unit(config), "brackets": list(brackets.values())})


def _unit(config: ExperimentConfig) -> str:
    section, length = config.searcher, config.searcher.max_length
    return (section.time_metric or "") if length is None else length.unit.value
