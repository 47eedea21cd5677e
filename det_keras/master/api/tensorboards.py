"""TensorBoards as tasks: each is a job on this machine, without a slot, until it is killed.

They listen on loopback, and the master redirects browsers there instead of proxying. Through a proxy, the requests of
TensorBoard's pages would carry the browser's login to the master, which pages of other programs are not allowed to
use.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from det_keras.master.database.context_store import FileEntries
from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.database.models import TaskRow, UserRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from det_keras.master.serializers.tasks import tensorboard_shape
from det_keras.master.server.bodies import MOST_FILE_BYTES
from det_keras.master.server.calls import CallerDep, MasterDep, PageDep, body, paged
from det_keras.master.server.responses import reply
from det_keras.master.tasks import allocations, jobs
from det_keras.master.teams.workspaces import find_workspace
from det_keras.master.wire import Message

router = APIRouter()

_PATH = "/api/v1/tensorboards"
_PROGRAM = "det_keras.cli.tensorboard_task"
# Browsers are redirected to this form of address only, whatever a task reports.
_LOOPBACK = re.compile(r"127\.0\.0\.1:[0-9]{1,5}", re.ASCII)


class CreateBody(Message):
    """The experiments or trials that a TensorBoard shows."""

    config: dict[str, Any] = Field(default_factory=dict)
    experiment_ids: list[int] = Field(default_factory=list)
    trial_ids: list[int] = Field(default_factory=list)
    files: FileEntries
    workspace_id: int | None = None
    template_name: str | None = None


@router.post(_PATH)
def create(
    master: MasterDep,
    caller: CallerDep,
    request: Annotated[CreateBody, body(CreateBody, most_bytes=MOST_FILE_BYTES)],
) -> Response:
    """Start a TensorBoard."""
    if importlib.util.find_spec("tensorboard") is None:
        raise FailedPreconditionError(
            "TensorBoard is not installed on the master: run `pip install 'det_keras[tensorboard]'` there."
        )
    if not (request.experiment_ids or request.trial_ids):
        raise InvalidArgumentError("`experimentIds` or `trialIds` must name what to show.")
    with master.store.reading() as session:
        for number in request.experiment_ids:
            find_experiment(session, number)
        for number in request.trial_ids:
            find_trial(session, number)
    task_id, notices = master.jobs.create(
        caller.user_id,
        _config(request),
        request.files,
        jobs.TENSORBOARD,
        workspace_id=request.workspace_id,
        template=request.template_name,
    )
    return reply({**_detail(master, task_id), "warnings": [], "notices": list(notices)})


@router.get(_PATH)
def listing(
    master: MasterDep,
    page: PageDep,
    users: Annotated[list[str], Query(description="Only TensorBoards of users with these names.")] = [],  # noqa: B006 - FastAPI copies it
    user_ids: Annotated[
        list[int], Query(alias="userIds", description="Only TensorBoards of users with these numbers.")
    ] = [],  # noqa: B006
    workspace_id: Annotated[
        int, Query(alias="workspaceId", description="Only TensorBoards of this workspace.")
    ] = 0,
) -> Response:
    """List TensorBoards."""
    query = jobs.jobs_of(
        jobs.TENSORBOARD, users, user_ids, workspace_id, is_descending=bool(page.is_descending)
    )
    with master.store.reading() as session:
        if workspace_id:
            find_workspace(session, workspace_id)
        rows = session.scalars(query).all()
        return reply(paged("tensorboards", rows, page, lambda part: _shapes(session, part)))


@router.get(_PATH + "/{task_id}")
def detail(master: MasterDep, task_id: str) -> Response:
    """Describe a TensorBoard."""
    return reply(_detail(master, task_id))


@router.post(_PATH + "/{task_id}/kill")
def kill(master: MasterDep, task_id: str) -> Response:
    """Kill a TensorBoard."""
    master.jobs.kill(task_id, jobs.TENSORBOARD)
    return reply({"tensorboard": _detail(master, task_id)["tensorboard"]})


@router.get("/proxy/{task_id}/{rest:path}")
@router.get("/det/interactive/{task_id}/{rest:path}")
def show(master: MasterDep, task_id: str, rest: str) -> Response:
    """Redirect a browser of this machine to a TensorBoard."""
    with master.store.reading() as session:
        jobs.find_job(session, task_id, jobs.TENSORBOARD)
        live = allocations.live_allocation(session, task_id)
    if live is None or not live.is_ready or not _LOOPBACK.fullmatch(live.proxy_address or ""):
        raise UnavailableError(f"TensorBoard {task_id} is not running yet, or not any more.")
    return RedirectResponse(f"http://{live.proxy_address}/", 302)


def _config(request: CreateBody) -> dict[str, Any]:
    numbers = [str(number) for number in request.experiment_ids]
    shown = [f"experiments {', '.join(numbers)}"] if numbers else []
    argv = [sys.executable, "-m", _PROGRAM, *numbers]
    if request.trial_ids:
        shown.append(f"trials {', '.join(map(str, request.trial_ids))}")
        argv += ["--trial-ids", *map(str, request.trial_ids)]
    resources = request.config.get("resources") or {}
    return {
        "description": f"TensorBoard ({'; '.join(shown)})",
        **request.config,
        "entrypoint": argv,
        # A value that is not a mapping is refused later, together with other problems of the config.
        "resources": {**resources, "slots": 0} if isinstance(resources, dict) else resources,
        "data": {"experiment_ids": request.experiment_ids, "trial_ids": request.trial_ids},
    }


def _detail(master: EmbeddedMaster, task_id: str) -> dict[str, Any]:
    with master.store.reading() as session:
        task = jobs.find_job(session, task_id, jobs.TENSORBOARD)
        (shape,) = _shapes(session, [task])
        return {"tensorboard": shape, "config": jobs.command_of(task)[0].hidden()}


def _shapes(session: Session, rows: Sequence[TaskRow]) -> list[dict[str, Any]]:
    live = {row.task_id: row for row in allocations.live_allocations(session)}
    users = {row.id: row for row in session.scalars(select(UserRow))}
    return [tensorboard_shape(row, live.get(row.id), users[row.owner_id]) for row in rows]
