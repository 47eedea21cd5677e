"""What a search has decided, and what its user changes while it runs. Not in Determined's API.

`rungs` returns the trials that reached each rung of an adaptive search, and `searcher` its space too. The other routes
steer a search: further trials, longer or shorter ones, and a narrower space.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from det_keras.config import ExperimentConfig
from det_keras.master.database.lookups import config_of, find_experiment, find_trial
from det_keras.master.experiments.rungs import brackets_of
from det_keras.master.experiments.search_state import read_searcher
from det_keras.master.experiments.steering import going_on
from det_keras.master.server.calls import MasterDep, body
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message
from det_keras.protocol import states

router = APIRouter(prefix="/api/v1")

_LONGEST = 2**53


class NewTrialBody(Message):
    """A trial that the user adds."""

    # By dotted names.
    hparams: dict[str, Any]


class NarrowBody(Message):
    """A part of the space of a search."""

    # By dotted names: the lowest and the highest value of a range, or the values of a list.
    hyperparameters: dict[str, list[Any]]


class ExtendBody(Message):
    """Another length of a trial."""

    length: Annotated[int, Field(ge=1, le=_LONGEST)]


@router.get("/experiments/{experiment_id}/searcher/rungs")
def rungs(master: MasterDep, experiment_id: int) -> Response:
    """Return the trials that reached each rung with their metrics, best first; no brackets if a search has no rungs."""
    with master.store.reading() as session:
        experiment = find_experiment(session, experiment_id)
        return reply({"unit": _unit(config_of(experiment)), "brackets": brackets_of(session, experiment)})


@router.get("/experiments/{experiment_id}/searcher")
@router.get("/experiments/{experiment_id}/searcher/space")
def searcher(master: MasterDep, experiment_id: int) -> Response:
    """Return the rungs as `rungs` does, the space of further trials, and how the user narrowed it, step by step."""
    with master.store.reading() as session:
        experiment = find_experiment(session, experiment_id)
        found = read_searcher(session, experiment)
        return reply(
            {
                "unit": _unit(config_of(experiment)),
                "brackets": brackets_of(session, experiment, found),
                "hyperparameters": found.space.to_dict(),
                "narrowings": found.narrowings,
            }
        )


@router.post("/experiments/{experiment_id}/searcher/narrow")
def narrow(
    master: MasterDep, experiment_id: int, request: Annotated[NarrowBody, body(NarrowBody)]
) -> Response:
    """Draw the further trials of a search from a part of its space; trials that have begun stay."""
    with master.store.writing() as tx:
        controller = going_on(tx, find_experiment(tx, experiment_id))
        controller.narrow(request.hyperparameters)
        return reply({"hyperparameters": controller.searcher.space.to_dict()})


@router.post("/experiments/{experiment_id}/trials")
def add_trial(
    master: MasterDep, experiment_id: int, request: Annotated[NewTrialBody, body(NewTrialBody)]
) -> Response:
    """Add a trial to a search, with values of one's own; it is trained fully, beside those of the search."""
    with master.store.writing() as tx:
        trial = going_on(tx, find_experiment(tx, experiment_id)).add_trial(request.hparams)
        return reply({"trialId": trial.id, "hparams": trial.hparams})


@router.post("/trials/{trial_id}/stop")
def stop(master: MasterDep, trial_id: int) -> Response:
    """End a trial at its next safe point, with a checkpoint; it counts as completed, and its search continues."""
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        controller = going_on(tx, find_experiment(tx, trial.experiment_id))
        controller.stop_trial(trial, states.STOPPING_COMPLETED)
    return reply()


@router.post("/trials/{trial_id}/extend")
def extend(master: MasterDep, trial_id: int, request: Annotated[ExtendBody, body(ExtendBody)]) -> Response:
    """Let a trial train to a longer length than its search gave it, in the unit of ``searcher.max_length``."""
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        going_on(tx, find_experiment(tx, trial.experiment_id)).extend(trial, request.length)
    return reply()


def _unit(config: ExperimentConfig) -> str:
    section, length = config.searcher, config.searcher.max_length
    return (section.time_metric or "") if length is None else length.unit.value
