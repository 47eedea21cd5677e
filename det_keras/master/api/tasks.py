"""Tasks of every kind: the running tasks, and their files."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response

from det_keras.master.database.models import AllocationRow, TaskRow, TrialRow
from det_keras.master.errors import NotFoundError
from det_keras.master.serializers.tasks import summary_shape, task_shape
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply
from det_keras.master.tasks import allocations, jobs
from det_keras.master.tasks.scheduling import DEFAULT_PRIORITY

router = APIRouter(prefix="/api/v1/tasks")


@router.get("")
def listing(master: MasterDep) -> Response:
    """List running tasks."""
    nodes = {node.id: node for node in master.pool.nodes}
    with master.queue.view() as queue:
        priorities = {task_id: job.facts.priority for job in queue.jobs.values() for task_id in job.running}
    with master.store.reading() as session:
        summaries = {
            row.id: summary_shape(
                row,
                _name(session, row),
                nodes,
                master.queue.policy.name,
                priorities.get(row.task_id, DEFAULT_PRIORITY),
            )
            for row in allocations.live_allocations(session)
        }
    return reply({"allocationIdToSummary": summaries})


@router.get("/count")
def count(master: MasterDep) -> Response:
    """Return how many tasks without trials are running, by kind."""
    with master.store.reading() as session:
        kinds = Counter(
            session.scalars(
                select(TaskRow.kind)
                .join(AllocationRow, AllocationRow.task_id == TaskRow.id)
                .where(AllocationRow.end_time.is_(None))
            )
        )
    return reply(
        {
            "commands": kinds[jobs.COMMAND],
            "notebooks": 0,
            "shells": 0,
            "tensorboards": kinds[jobs.TENSORBOARD],
        }
    )


@router.get("/{task_id}")
def detail(master: MasterDep, task_id: str) -> Response:
    """Describe a task and its allocations, latest first."""
    with master.store.reading() as session:
        task = _find(session, task_id)
        query = select(AllocationRow).where(AllocationRow.task_id == task_id)
        rows = session.scalars(query.order_by(AllocationRow.run_id.desc())).all()
        return reply({"task": task_shape(task, rows)})


@router.get("/{task_id}/context_directory")
def context_directory(master: MasterDep, task_id: str) -> Response:
    """Return a task's files."""
    with master.store.reading() as session:
        context = _find(session, task_id).context
    return reply({"b64Tgz": master.bundles.encoded(context)})


def _find(session: Session, task_id: str) -> TaskRow:
    row = session.get(TaskRow, task_id)
    if row is None:
        raise NotFoundError(f"task '{task_id}' not found")
    return row


def _name(session: Session, allocation: AllocationRow) -> str:
    task = _find(session, allocation.task_id)
    if task.kind != jobs.TRIAL:
        return task.description
    trial = session.scalars(select(TrialRow).where(TrialRow.task_id == task.id)).one()
    return f"Trial {trial.id} (Experiment {trial.experiment_id})"
