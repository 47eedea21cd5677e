"""Unmanaged trials, whose scripts users start themselves: create, start, heartbeat and end."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from det_keras.master.checkpoints.records import latest_checkpoint
from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.database.models import ExperimentRow
from det_keras.master.database.store import Transaction
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import FailedPreconditionError
from det_keras.master.experiments.unmanaged import UnmanagedController
from det_keras.master.serializers.trials import TRIAL_STATES, trial_shapes
from det_keras.master.server.calls import MasterDep, body, choice
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1/trials")


class CreateBody(Message):
    """An unmanaged trial to create."""

    experiment_id: int
    hparams: dict[str, Any] = Field(default_factory=dict)


class PutBody(Message):
    """An unmanaged trial to create or find, under an id chosen by its script."""

    create_trial_request: CreateBody
    external_trial_id: str = Field(min_length=1, max_length=255)


class StartBody(Message):
    """The beginning of a run."""

    resume: bool = False


class PatchBody(Message):
    """A heartbeat, or the state with which a trial ended."""

    state: str | None = None


@router.post("")
def create(master: MasterDep, request: Annotated[CreateBody, body(CreateBody)]) -> Response:
    """Create a trial."""
    return _created(master, request, None)


@router.put("")
def put(master: MasterDep, request: Annotated[PutBody, body(PutBody)]) -> Response:
    """Create a trial, or return the one with this external id."""
    return _created(master, request.create_trial_request, request.external_trial_id)


@router.post("/{trial_id}/start")
def start(master: MasterDep, trial_id: int, request: Annotated[StartBody, body(StartBody)]) -> Response:
    """Begin the next run of a trial, and return where it can resume."""
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        _controller(tx, find_experiment(tx, trial.experiment_id)).start_run(trial)
        latest = latest_checkpoint(tx, trial_id) if request.resume else None
        return reply(
            {
                "trialRunId": trial.run_id,
                "latestCheckpoint": None if latest is None else latest.uuid,
                "stepsCompleted": 0 if latest is None else latest.steps_completed,
            }
        )


@router.patch("/{trial_id}")
def hear(master: MasterDep, trial_id: int, request: Annotated[PatchBody, body(PatchBody)]) -> Response:
    """Record a heartbeat of a trial's script, or how it ended."""
    state = None if request.state is None else choice(request.state, "STATE_", TRIAL_STATES)
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        _controller(tx, find_experiment(tx, trial.experiment_id)).heard(trial, state)
    return _described(master, trial_id)


def _created(master: EmbeddedMaster, request: CreateBody, external_id: str | None) -> Response:
    with master.store.writing() as tx:
        experiment = find_experiment(tx, request.experiment_id)
        trial_id = _controller(tx, experiment).create_trial(request.hparams, external_id).id
    return _described(master, trial_id)


def _described(master: EmbeddedMaster, trial_id: int) -> Response:
    with master.store.reading() as session:
        (shape,) = trial_shapes(session, [find_trial(session, trial_id)])
    return reply({"trial": shape})


def _controller(tx: Transaction, experiment: ExperimentRow) -> UnmanagedController:
    if not experiment.is_unmanaged:
        raise FailedPreconditionError(
            f"The master runs experiment {experiment.id}; only experiments created with `unmanaged` accept this call."
        )
    return UnmanagedController(tx, experiment)
