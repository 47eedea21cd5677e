"""The rungs of an adaptive search, and the trials that reached them. Not in Determined's API."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from det_keras.config import ExperimentConfig
from det_keras.master.database.lookups import config_of, find_experiment
from det_keras.master.experiments.rungs import brackets_of
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply

router = APIRouter(prefix="/api/v1/experiments")


@router.get("/{experiment_id}/searcher/rungs")
def rungs(master: MasterDep, experiment_id: int) -> Response:
    """Return the trials that reached each rung with their metrics, best first; no brackets if a search has no rungs."""
    with master.store.reading() as session:
        experiment = find_experiment(session, experiment_id)
        return reply({"unit": _unit(config_of(experiment)), "brackets": brackets_of(session, experiment)})


def _unit(config: ExperimentConfig) -> str:
    section, length = config.searcher, config.searcher.max_length
    return (section.time_metric or "") if length is None else length.unit.value
