"""Where experiments, trials and jobs come from: commands, machines, packages, repositories."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.reports.provenance import (
    check_trial_record,
    read_record,
    read_trial_record,
    store_trial_record,
    subject_of,
)
from det_keras.master.server.calls import MasterDep, body
from det_keras.master.server.responses import reply
from det_keras.master.tasks import jobs
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1")


class ProvenanceBody(Message):
    """Where a training runs: plain values by name."""

    provenance: dict[str, Any] = Field(default_factory=dict)


@router.get("/experiments/{experiment_id}/provenance")
def of_experiment(master: MasterDep, experiment_id: int) -> Response:
    """Return where an experiment was submitted, as the client recorded it; null if it did not."""
    with master.store.reading() as session:
        find_experiment(session, experiment_id)
        return reply({"provenance": read_record(session, subject_of("experiment", experiment_id))})


@router.get("/trials/{trial_id}/provenance")
def of_trial(master: MasterDep, trial_id: int) -> Response:
    """Return where the latest run of a trial trains and its model, as its process recorded it; null if it did not."""
    with master.store.reading() as session:
        find_trial(session, trial_id)
        return reply({"provenance": read_trial_record(session, trial_id)})


@router.post("/trials/{trial_id}/provenance")
def report_trial(
    master: MasterDep, trial_id: int, request: Annotated[ProvenanceBody, body(ProvenanceBody)]
) -> Response:
    """Record where a trial trains, or its model; each replaces that of an earlier run."""
    check_trial_record(request.provenance)
    with master.store.writing() as tx:
        find_trial(tx, trial_id)
        store_trial_record(tx, trial_id, request.provenance)
    return reply()


@router.get("/commands/{task_id}/provenance")
def of_job(master: MasterDep, task_id: str) -> Response:
    """Return where a job was submitted, as the client recorded it; null if it did not."""
    with master.store.reading() as session:
        jobs.find_job(session, task_id)
        return reply({"provenance": read_record(session, subject_of("task", task_id))})
