"""The tasks that wait for slots and the slots in use, read from the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from det_keras.config import Resources
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import AllocationRow, ExperimentRow, TaskRow, TrialRow
from det_keras.master.tasks import jobs
from det_keras.master.tasks.scheduler import DEFAULT_PRIORITY, Request
from det_keras.protocol import states

__all__ = ["slots_by_owner", "still_waits", "waiting_requests"]


def waiting_requests(session: Session) -> list[Request]:
    """Return the requests of all tasks that wait for slots."""
    requests = [*_trial_requests(session), *_job_requests(session)]
    first_of: dict[str, Request] = {}
    for request in requests:
        known = first_of.setdefault(request.owner, request)
        first_of[request.owner] = min(known, request, key=lambda candidate: candidate.order)
    # Only the first request of an owner lends slots: the others are behind it in the queue.
    return [
        _with_lent_slots(session, request)
        if request.slots > 1 and request is first_of[request.owner]
        else request
        for request in requests
    ]


def slots_by_owner(session: Session) -> Mapping[str, int]:
    """Return how many slots each experiment and job uses."""
    used: dict[str, int] = {}
    query = select(AllocationRow.slot_ids, TaskRow.job_id).join(TaskRow, TaskRow.id == AllocationRow.task_id)
    for slot_ids, job_id in session.execute(query.where(AllocationRow.end_time.is_(None))):
        used[job_id] = used.get(job_id, 0) + len(slot_ids)
    return used


def still_waits(session: Session, task: TaskRow) -> bool:
    """Return whether a task still waits: the user may have ended or paused it since the plan was made."""
    if task.kind != jobs.TRIAL:
        return task.end_time is None
    query = (
        select(TrialRow.has_work, TrialRow.state, ExperimentRow.state)
        .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
        .where(TrialRow.task_id == task.id)
    )
    has_work, state, experiment_state = session.execute(query).one()
    return bool(has_work) and state == experiment_state == states.ACTIVE


def _trial_requests(session: Session) -> list[Request]:
    query = (
        select(TrialRow.task_id, TrialRow.start_time, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
        .where(
            ExperimentRow.state == states.ACTIVE,
            ExperimentRow.is_unmanaged.is_(False),
            TrialRow.state == states.ACTIVE,
            TrialRow.has_work.is_(True),
            TrialRow.task_id.not_in(_running_tasks()),
        )
        .order_by(TrialRow.id)
    )
    requests = []
    resources_of: dict[int, Resources] = {}
    for task_id, start_time, experiment in session.execute(query):
        # Parsed once per experiment: a search without a limit has thousands of waiting trials.
        if experiment.id not in resources_of:
            resources_of[experiment.id] = config_of(experiment).resources
        resources = resources_of[experiment.id]
        requests.append(
            Request(
                task_id=task_id,
                owner=experiment.job_id,
                slots=resources.slots_per_trial,
                order=_microseconds(start_time),
                priority=resources.priority or DEFAULT_PRIORITY,
                max_slots=resources.max_slots,
            )
        )
    return requests


def _job_requests(session: Session) -> list[Request]:
    query = select(TaskRow).where(
        TaskRow.kind != jobs.TRIAL, TaskRow.end_time.is_(None), TaskRow.id.not_in(_running_tasks())
    )
    return [
        Request(
            task_id=task.id,
            owner=task.job_id,
            slots=task.slots,
            order=_microseconds(task.start_time),
            priority=((task.config or {}).get("resources") or {}).get("priority") or DEFAULT_PRIORITY,
        )
        for task in session.scalars(query)
    ]


def _with_lent_slots(session: Session, request: Request) -> Request:
    """Return a request with the slots that others were given while it waited, up to its own number of slots."""
    ran_until = session.scalar(
        select(func.max(AllocationRow.end_time)).where(AllocationRow.task_id == request.task_id)
    )
    since = ran_until or session.scalar(select(TaskRow.start_time).where(TaskRow.id == request.task_id))
    query = (
        select(AllocationRow.slot_ids)
        .where(AllocationRow.start_time > since)
        .order_by(AllocationRow.start_time.desc())
        .limit(request.slots)
    )
    overtaken_slots: Sequence[int] = [len(slot_ids) for slot_ids in session.scalars(query)]
    return replace(request, overtaken_slots=sum(overtaken_slots))


def _running_tasks() -> Select[str]:
    return select(AllocationRow.task_id).where(AllocationRow.end_time.is_(None))


def _microseconds(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000)
