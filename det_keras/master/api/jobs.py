"""Generic jobs, which the REST API calls commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response

from det_keras.master.database.context_store import FileEntries
from det_keras.master.database.models import TaskRow, UserRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.serializers.tasks import command_shape
from det_keras.master.server.bodies import MOST_FILE_BYTES
from det_keras.master.server.calls import CallerDep, MasterDep, PageDep, body, paged
from det_keras.master.server.responses import reply
from det_keras.master.tasks import allocations, jobs
from det_keras.master.teams.workspaces import find_workspace
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1/commands")


class CreateBody(Message):
    """A job to run."""

    without_effect = frozenset({"data"})

    config: dict[str, Any]
    files: FileEntries
    workspace_id: int | None = None
    template_name: str | None = None
    provenance: dict[str, Any] = Field(default_factory=dict)


@router.post("")
def create(
    master: MasterDep,
    caller: CallerDep,
    request: Annotated[CreateBody, body(CreateBody, most_bytes=MOST_FILE_BYTES)],
) -> Response:
    """Queue a job."""
    task_id, notices = master.jobs.create(
        caller.user_id,
        request.config,
        request.files,
        provenance=request.provenance,
        workspace_id=request.workspace_id,
        template=request.template_name,
    )
    return reply({**_detail(master, task_id), "warnings": [], "notices": list(notices)})


@router.get("")
def listing(
    master: MasterDep,
    page: PageDep,
    users: Annotated[list[str], Query(description="Only jobs of users with these names.")] = [],  # noqa: B006 - FastAPI copies it
    user_ids: Annotated[
        list[int], Query(alias="userIds", description="Only jobs of users with these numbers.")
    ] = [],  # noqa: B006
    workspace_id: Annotated[int, Query(alias="workspaceId", description="Only jobs of this workspace.")] = 0,
) -> Response:
    """List jobs."""
    query = jobs.jobs_of(jobs.COMMAND, users, user_ids, workspace_id, is_descending=bool(page.is_descending))
    with master.store.reading() as session:
        if workspace_id:
            find_workspace(session, workspace_id)
        rows = session.scalars(query).all()
        return reply(paged("commands", rows, page, lambda part: _shapes(session, part)))


@router.get("/{task_id}")
def detail(master: MasterDep, task_id: str) -> Response:
    """Describe a job."""
    return reply(_detail(master, task_id))


@router.post("/{task_id}/kill")
def kill(master: MasterDep, task_id: str) -> Response:
    """Kill a job."""
    master.jobs.kill(task_id)
    return reply({"command": _detail(master, task_id)["command"]})


def _detail(master: EmbeddedMaster, task_id: str) -> dict[str, Any]:
    with master.store.reading() as session:
        task = jobs.find_job(session, task_id)
        (shape,) = _shapes(session, [task])
        return {"command": shape, "config": jobs.command_of(task)[0].hidden()}


def _shapes(session: Session, rows: Sequence[TaskRow]) -> list[dict[str, Any]]:
    live = {row.task_id: row for row in allocations.live_allocations(session)}
    users = {row.id: row for row in session.scalars(select(UserRow))}
    return [command_shape(row, live.get(row.id), users[row.owner_id]) for row in rows]
