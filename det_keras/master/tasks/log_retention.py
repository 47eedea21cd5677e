"""Logs to delete, by `retention_policy.log_retention_days` of their experiments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.database.models import ExperimentRow, LogRow, TaskRow
from det_keras.protocol import states

_FOR_EVER = -1


def expired_tasks(session: Session, now: datetime) -> Sequence[str]:
    """Return the tasks of ended experiments whose log lines are to be deleted by `now`.

    Days count from the experiment's end. 0 deletes at once; -1 and an absent policy never delete.
    """
    ended = session.scalars(
        select(ExperimentRow).where(
            ExperimentRow.state.in_(states.TERMINAL), ExperimentRow.end_time.is_not(None)
        )
    )
    expired = [experiment.job_id for experiment in ended if _is_expired(experiment, now)]
    # By the job and not by the trial: a continued trial had other tasks before.
    has_lines = select(LogRow.id).where(LogRow.task_id == TaskRow.id).exists()
    return session.scalars(select(TaskRow.id).where(TaskRow.job_id.in_(expired), has_lines)).all()


def _is_expired(experiment: ExperimentRow, now: datetime) -> bool:
    policy = experiment.config.get("retention_policy") or {}
    days = policy.get("log_retention_days")
    if days is None or days == _FOR_EVER or experiment.end_time is None:
        return False
    return experiment.end_time + timedelta(days=days) <= now
