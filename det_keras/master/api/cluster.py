"""The machine as a cluster of one agent: agent, pool, queue and workspace; previews of searches."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from det_keras import search
from det_keras.config import dump_yaml
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import ExperimentRow, TaskRow, UserRow
from det_keras.master.serializers.cluster import agent_shape, pool_shape, workspace_shape
from det_keras.master.serializers.tasks import job_shape
from det_keras.master.server.calls import MasterDep, PageDep, body, choices, paged
from det_keras.master.server.responses import reply
from det_keras.master.tasks import allocations, jobs
from det_keras.master.wire import Message
from det_keras.protocol import states

__all__ = ["router"]

router = APIRouter(prefix="/api/v1")

_QUEUE_LIMIT = 100
_QUEUE_STATES = ("UNSPECIFIED", "QUEUED", "SCHEDULED", "SCHEDULED_BACKFILLED")


class PreviewBody(Message):
    """A config whose search is previewed."""

    config: dict[str, Any] = Field(default_factory=dict)


@router.get("/agents")
def agents(master: MasterDep, page: PageDep) -> Response:
    """List the agents: this machine."""
    with master.store.reading() as session:
        live = allocations.live_allocations(session)
        shape = agent_shape(master.identity.agent_id, master.pool.slots, live, master.started_at)
    return reply(paged("agents", [shape], page, list))


@router.get("/resource-pools")
def resource_pools(master: MasterDep, page: PageDep) -> Response:
    """List the resource pools: one."""
    with master.store.reading() as session:
        entries = _queue(session)
        used = sum(entry["allocatedSlots"] for entry in entries)
        running = sum(1 for entry in entries if entry["summary"]["state"] == "STATE_SCHEDULED")
    shape = pool_shape(master.pool.slots, used, running, len(entries) - running)
    return reply(paged("resourcePools", [shape], page, list))


@router.get("/job-queues-v2")
def job_queue(
    master: MasterDep,
    page: PageDep,
    pool: Annotated[str, Query(alias="resourcePool", description="Only this pool; empty for all.")] = "",
    states: Annotated[
        list[str], Query(description="Only `STATE_QUEUED` or `STATE_SCHEDULED`; empty for both.")
    ] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """List running and waiting experiments and jobs."""
    shown = [f"STATE_{state}" for state in choices(states, "STATE_", _QUEUE_STATES)]
    with master.store.reading() as session:
        entries = [
            {"full": entry, "limited": None}
            for entry in _queue(session)
            if pool in ("", entry["resourcePool"]) and (not shown or entry["summary"]["state"] in shown)
        ]
    if page.is_descending:
        entries.reverse()
    return reply(paged("jobs", entries, page, list, _QUEUE_LIMIT))


@router.get("/workspaces")
def workspaces(master: MasterDep, page: PageDep, name: str = "") -> Response:
    """List the workspaces: one."""
    with master.store.reading() as session:
        count = session.scalar(select(func.count()).select_from(ExperimentRow)) or 0
    shapes = [workspace_shape(1, count)]
    return reply(paged("workspaces", [shape for shape in shapes if name in ("", shape["name"])], page, list))


@router.get("/notebooks")
def notebooks(page: PageDep) -> Response:
    """List notebooks: always none."""
    return reply(paged("notebooks", [], page, list))


@router.get("/shells")
def shells(page: PageDep) -> Response:
    """List shells: always none."""
    return reply(paged("shells", [], page, list))


@router.post("/preview-hp-search")
def preview(master: MasterDep, request: Annotated[PreviewBody, body(PreviewBody)]) -> Response:
    """Return the trials that a search would run."""
    config = master.experiments.load(dump_yaml(request.config)).config
    found = search.preview(config, len(master.pool.slots))
    unit = {"maxLength": not found.endings, "name": found.unit, "value": found.full_length or 0}
    endings = [(count, {**unit, "value": length}) for length, count in found.endings.items()]
    trials = [{"count": count, "unit": unit} for count, unit in endings or [(found.trials, unit)]]
    summary = {"config": config.searcher.to_dict(), "trials": trials, "simulation": _simulation(found)}
    return reply({"summary": summary})


def _simulation(found: search.Preview) -> dict[str, Any] | None:
    run = found.simulated
    if run is None:
        return None
    endings = [
        {"count": count, "unit": {"maxLength": False, "name": found.unit, "value": length}}
        for length, count in run.endings().items()
    ]
    return {
        "trials": endings,
        "totalLength": run.total_length,
        "mostAtOnce": run.most_at_once,
        "time": run.time,
    }


def _queue(session: Session) -> list[dict[str, Any]]:
    live: dict[str, int] = {}
    for allocation in allocations.live_allocations(session):
        task = session.get(TaskRow, allocation.task_id)
        assert task is not None
        live[task.job_id] = live.get(task.job_id, 0) + len(allocation.slot_ids)
    users = {row.id: row for row in session.scalars(select(UserRow))}
    active = select(ExperimentRow).where(
        ExperimentRow.state == states.ACTIVE, ExperimentRow.is_unmanaged.is_(False)
    )
    waiting = select(TaskRow).where(TaskRow.kind != jobs.TRIAL, TaskRow.end_time.is_(None))
    entities: list[ExperimentRow | TaskRow] = [*session.scalars(active), *session.scalars(waiting)]
    entities.sort(key=lambda entity: (entity.job_id not in live, entity.start_time))
    return [
        _queue_entry(entity, users[entity.owner_id], live.get(entity.job_id), position)
        for position, entity in enumerate(entities)
    ]


def _queue_entry(
    entity: ExperimentRow | TaskRow, owner: UserRow, slots_in_use: int | None, position: int
) -> dict[str, Any]:
    if isinstance(entity, ExperimentRow):
        resources = config_of(entity).resources
        name, requested, priority = entity.name, resources.slots_per_trial, resources.priority
    else:
        name, requested, priority = entity.description, entity.slots, None
    return job_shape(
        entity=entity,
        name=name,
        owner=owner,
        requested_slots=requested,
        allocated_slots=slots_in_use or 0,
        priority=priority,
        jobs_ahead=0 if slots_in_use is not None else position,
        is_scheduled=slots_in_use is not None,
        progress=entity.progress if isinstance(entity, ExperimentRow) else 0.0,
    )
