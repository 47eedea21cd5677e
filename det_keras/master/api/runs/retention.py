"""How long the logs of experiments and trials are kept."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from sqlalchemy import func, select
from starlette.responses import Response

from det_keras.master.accounts.users import require_admin
from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.database.models import LogRow
from det_keras.master.server.calls import CallerDep, MasterDep, body
from det_keras.master.server.responses import reply
from det_keras.master.tasks import log_retention
from det_keras.master.wire import Message
from det_keras.protocol.values import now

router = APIRouter(prefix="/api/v1")


class RetainBody(Message):
    """For how many days logs are kept after the end of the experiment; -1 for ever."""

    experiment_id: int = 0
    trial_id: int = 0
    num_days: int


@router.put("/experiments/{experiment_id}/retain_logs")
def retain_of_experiment(
    master: MasterDep, experiment_id: int, request: Annotated[RetainBody, body(RetainBody)]
) -> Response:
    """Say for how many days the logs of all trials of an experiment are kept after its end."""
    with master.store.writing() as tx:
        log_retention.retain_experiment(tx, find_experiment(tx, experiment_id), request.num_days)
    return reply()


@router.put("/trials/{trial_id}/retain_logs")
def retain_of_trial(
    master: MasterDep, trial_id: int, request: Annotated[RetainBody, body(RetainBody)]
) -> Response:
    """Say for how many days the log of a trial is kept after the end of its experiment."""
    with master.store.writing() as tx:
        log_retention.retain_trial(tx, find_trial(tx, trial_id), request.num_days)
    return reply()


@router.get("/trials/{trial_id}/remaining_log_retention_days")
def remaining(master: MasterDep, trial_id: int) -> Response:
    """Return for how many days more the log of a trial is kept; -1 for ever."""
    with master.store.reading() as session:
        trial = find_trial(session, trial_id)
        experiment = find_experiment(session, trial.experiment_id)
        days = log_retention.remaining_days(experiment, trial, master.log_retention_days, now())
    return reply({"remainingDays": days})


@router.post("/cleanup_logs")
def clean_up(master: MasterDep, caller: CallerDep) -> Response:
    """Delete the logs whose time is over now; the master does so by itself every minute."""
    with master.store.reading() as session:
        require_admin(session, caller, "delete logs")
        expired = log_retention.expired_tasks(session, now(), master.log_retention_days)
        count = sum(
            session.scalar(select(func.count()).where(LogRow.task_id == task_id)) or 0 for task_id in expired
        )
    master.garbage_collector.delete_old_logs(expired)
    return reply({"removedCount": str(count)})
