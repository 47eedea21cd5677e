"""Waiting tasks and used slots, read from the database in the plainest way: what the live queue must equal."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import AllocationRow, ExperimentRow, TaskRow, TrialRow
from det_keras.master.tasks import jobs
from det_keras.master.tasks.live_queue import microseconds
from det_keras.master.tasks.scheduling import DEFAULT_PRIORITY
from det_keras.protocol import states


def waiting_tasks(session: Session) -> dict[str, tuple]:
    """Return job, slots, order, priority, weight and limit of each waiting task."""
    running = select(AllocationRow.task_id).where(AllocationRow.end_time.is_(None))
    query = (
        select(TrialRow, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
        .where(
            ExperimentRow.state == states.ACTIVE,
            ExperimentRow.is_unmanaged.is_(False),
            TrialRow.state == states.ACTIVE,
            TrialRow.has_work.is_(True),
            TrialRow.task_id.not_in(running),
        )
    )
    found = {}
    for trial, experiment in session.execute(query):
        asked = config_of(experiment).resources
        found[trial.task_id] = (
            experiment.job_id,
            asked.slots_per_trial,
            microseconds(trial.start_time),
            asked.priority or DEFAULT_PRIORITY,
            asked.weight,
            asked.max_slots,
        )
    generic = select(TaskRow).where(
        TaskRow.kind != jobs.TRIAL, TaskRow.end_time.is_(None), TaskRow.id.not_in(running)
    )
    for task in session.scalars(generic):
        asked = task.config["resources"]
        found[task.id] = (
            task.job_id,
            task.slots,
            microseconds(task.start_time),
            asked.get("priority") or DEFAULT_PRIORITY,
            asked["weight"],
            None,
        )
    return found


def running_tasks(session: Session) -> dict[str, tuple]:
    """Return job, slots by node, and whether it is stopping, of each running task."""
    query = (
        select(AllocationRow, TaskRow.job_id)
        .join(TaskRow, TaskRow.id == AllocationRow.task_id)
        .where(AllocationRow.end_time.is_(None))
    )
    return {
        row.task_id: (
            job_id,
            sorted((share["node"], slot) for share in row.shares for slot in share["slot_ids"]),
            row.is_preempted or row.is_killed,
        )
        for row, job_id in session.execute(query)
    }


def lent_slots(session: Session, task_id: str) -> int:
    """Return how many slots others were given since a task began to wait."""
    task = session.get(TaskRow, task_id)
    ends = [
        end
        for end in session.scalars(select(AllocationRow.end_time).where(AllocationRow.task_id == task_id))
        if end is not None
    ]
    since = max(ends, default=task.start_time)
    return sum(
        row.slots for row in session.scalars(select(AllocationRow).where(AllocationRow.start_time > since))
    )
