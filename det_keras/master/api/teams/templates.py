"""Templates of configs: create, list, replace, rename and delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field
from sqlalchemy import func, select
from starlette.responses import Response

from det_keras.config.secrets import masked
from det_keras.master.database.models import TemplateRow
from det_keras.master.server.calls import CallerDep, MasterDep, PageDep, body, choice, paged
from det_keras.master.server.responses import reply
from det_keras.master.teams import templates
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1")


class TemplateBody(Message):
    """A template."""

    config: dict[str, Any] = Field(default_factory=dict)
    workspace_id: int = 0


class WholeBody(Message):
    """The config of a template, as the whole body."""

    model_config = ConfigDict(extra="allow")


class RenameBody(Message):
    """A template, and its new name."""

    old_name: str
    new_name: str


@router.get("/templates")
def listing(
    master: MasterDep,
    page: PageDep,
    name: Annotated[str, Query(description="Part of the name, in upper or lower case.")] = "",
    workspace_ids: Annotated[
        list[int], Query(alias="workspaceIds", description="Only those of these workspaces.")
    ] = [],  # noqa: B006 - FastAPI copies it
    sort_by: Annotated[str, Query(alias="sortBy")] = "SORT_BY_UNSPECIFIED",
) -> Response:
    """List templates by name."""
    choice(sort_by, "SORT_BY_", ("UNSPECIFIED", "NAME"))
    query = select(TemplateRow)
    if name:
        query = query.where(func.lower(TemplateRow.name).contains(name.lower(), autoescape=True))
    if workspace_ids:
        query = query.where(TemplateRow.workspace_id.in_(workspace_ids))
    order = TemplateRow.name.desc() if page.is_descending else TemplateRow.name
    with master.store.reading() as session:
        rows = session.scalars(query.order_by(order)).all()
    return reply(paged("templates", rows, page, lambda part: [_shape(row) for row in part]))


@router.get("/templates/{name}")
def detail(master: MasterDep, name: str) -> Response:
    """Describe a template; its secrets are masked."""
    with master.store.reading() as session:
        return reply({"template": _shape(templates.find_template(session, name))})


@router.post("/templates/{name}")
def create(
    master: MasterDep, caller: CallerDep, name: str, request: Annotated[TemplateBody, body(TemplateBody)]
) -> Response:
    """Create a template."""
    with master.store.writing() as tx:
        row = templates.create(tx, caller, name, request.config, request.workspace_id)
        return reply({"template": _shape(row)})


@router.put("/templates/{name}")
def put(
    master: MasterDep, caller: CallerDep, name: str, request: Annotated[TemplateBody, body(TemplateBody)]
) -> Response:
    """Create a template, or replace the config of the one with this name."""
    with master.store.writing() as tx:
        if tx.get(TemplateRow, name) is None:
            row = templates.create(tx, caller, name, request.config, request.workspace_id)
        else:
            row = templates.replace(tx, caller, name, request.config)
        return reply({"template": _shape(row)})


@router.patch("/templates/{name}")
def replace(
    master: MasterDep, caller: CallerDep, name: str, request: Annotated[WholeBody, body(WholeBody)]
) -> Response:
    """Replace the config of a template by the whole body."""
    with master.store.writing() as tx:
        row = templates.replace(tx, caller, name, request.model_extra or {})
        return reply({"template": _shape(row)})


@router.patch("/template/rename")
def rename(
    master: MasterDep, caller: CallerDep, request: Annotated[RenameBody, body(RenameBody)]
) -> Response:
    """Rename a template."""
    with master.store.writing() as tx:
        row = templates.rename(tx, caller, request.old_name, request.new_name)
        return reply({"template": _shape(row)})


@router.delete("/templates/{name}")
def delete(master: MasterDep, caller: CallerDep, name: str) -> Response:
    """Delete a template; what was created with it stays as it is."""
    with master.store.writing() as tx:
        templates.delete(tx, caller, name)
    return reply()


def _shape(row: TemplateRow) -> dict[str, Any]:
    return {"name": row.name, "config": masked(row.config), "workspaceId": row.workspace_id}
