"""The queue: running and waiting jobs, and their changes by users; the pool with its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response

from det_keras.master.database.models import ExperimentRow, ProjectRow, TaskRow, UserRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.experiments.queue_updates import QueueUpdate, update_queue
from det_keras.master.serializers.cluster import pool_shape
from det_keras.master.serializers.tasks import job_shape
from det_keras.master.server.calls import MasterDep, PageDep, body, choices, paged
from det_keras.master.server.responses import reply
from det_keras.master.tasks import jobs
from det_keras.master.tasks.scheduling import POOL, JobFacts, tasks_ahead, wait_reason
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1")

_LIMIT = 100
_STATES = ("UNSPECIFIED", "QUEUED", "SCHEDULED", "SCHEDULED_BACKFILLED")


class UpdatesBody(Message):
    """Changes of the queue."""

    updates: list[QueueUpdate] = Field(default_factory=list)


class _Entry(NamedTuple):
    """A job of the queue."""

    job_id: str
    facts: JobFacts
    slots: int
    is_running: bool
    reason: str


@router.get("/job-queues-v2")
def job_queue(
    master: MasterDep,
    page: PageDep,
    pool: Annotated[str, Query(alias="resourcePool", description="Only this pool; empty for all.")] = "",
    states: Annotated[
        list[str], Query(description="Only `STATE_QUEUED` or `STATE_SCHEDULED`; empty for both.")
    ] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """List running and waiting experiments and jobs: those that run first, then in the order of the queue."""
    shown = choices(states, "STATE_", _STATES)
    entries = list(enumerate(_entries(master))) if pool in ("", POOL) else []
    if shown:
        entries = [pair for pair in entries if ("SCHEDULED" if pair[1].is_running else "QUEUED") in shown]
    if page.is_descending:
        entries.reverse()
    with master.store.reading() as session:
        return reply(paged("jobs", entries, page, lambda part: _shapes(session, part), _LIMIT))


@router.post("/job-queues")
def update(master: MasterDep, request: Annotated[UpdatesBody, body(UpdatesBody)]) -> Response:
    """Change priorities or weights of jobs, or move them in the queue: all changes or none."""
    update_queue(master.store, master.queue, request.updates)
    return reply()


@router.get("/resource-pools")
def resource_pools(master: MasterDep, page: PageDep) -> Response:
    """List the resource pools: one."""
    entries = _entries(master)
    used = sum(entry.slots for entry in entries)
    running = sum(1 for entry in entries if entry.is_running)
    with master.queue.view() as queue:
        draining = sum(
            not queue.cluster.has(share.node, slot)
            for job in queue.jobs.values()
            for task in job.running.values()
            for share in task.shares
            for slot in share.slot_ids
        )
        slots = queue.cluster.total + draining
    shape = pool_shape(master.pool, slots, used, running, len(entries) - running, master.queue.policy.name)
    return reply(paged("resourcePools", [shape], page, list))


def _entries(master: EmbeddedMaster) -> list[_Entry]:
    """Return all jobs of the queue in order."""
    with master.queue.view() as queue:
        ahead = tasks_ahead(queue)
        place = {job_id: index for index, job_id in enumerate(ahead)}
        found = [job for job in queue.jobs.values() if not job.is_over]
        last = len(place)
        found.sort(
            key=lambda job: (
                not job.running,
                0 if job.running else place.get(job.id, last),
                job.facts.submitted,
            )
        )
        return [
            _Entry(
                job.id,
                job.facts,
                sum(task.slots for task in job.running.values()),
                bool(job.running),
                wait_reason(queue, job, ahead.get(job.id, 0)),
            )
            for job in found
        ]


def _shapes(session: Session, part: Sequence[tuple[int, _Entry]]) -> list[dict[str, Any]]:
    ids = [entry.job_id for _, entry in part]
    experiments = select(ExperimentRow).where(ExperimentRow.job_id.in_(ids))
    tasks = select(TaskRow).where(TaskRow.job_id.in_(ids), TaskRow.kind != jobs.TRIAL)
    entities: dict[str, ExperimentRow | TaskRow] = {}
    for row in (*session.scalars(experiments), *session.scalars(tasks)):
        entities[row.job_id] = row
    users = {row.id: row for row in session.scalars(select(UserRow))}
    workspaces = {row.id: row.workspace_id for row in session.scalars(select(ProjectRow))}
    shapes = []
    for index, entry in part:
        entity = entities.get(entry.job_id)
        # It may have been deleted since the queue was read.
        if entity is not None:
            full = job_shape(
                entity=entity,
                owner=users[entity.owner_id],
                facts=entry.facts,
                allocated_slots=entry.slots,
                jobs_ahead=0 if entry.is_running else index,
                is_scheduled=entry.is_running,
                wait_reason=entry.reason,
                workspace_id=entity.workspace_id
                if isinstance(entity, TaskRow)
                else workspaces[entity.project_id],
            )
            shapes.append({"full": full, "limited": None})
    return shapes
