"""Workspaces: create, list, change, pin, archive and delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import func, select
from starlette.responses import Response

from det_keras.master.api.teams.projects import listed_projects
from det_keras.master.database.models import PinRow, ProjectRow, UserRow, WorkspaceRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.experiments import bulk
from det_keras.master.serializers.teams import workspace_shapes
from det_keras.master.server.calls import CallerDep, MasterDep, PageDep, body, choice, paged
from det_keras.master.server.responses import reply
from det_keras.master.tasks.scheduling import POOL
from det_keras.master.teams import workspaces
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1/workspaces")

_ORDERS: dict[str, Any] = {"UNSPECIFIED": WorkspaceRow.id, "ID": WorkspaceRow.id, "NAME": WorkspaceRow.name}


class WorkspaceBody(Message):
    """A workspace to create, or its changes; absent fields stay as they are."""

    name: str | None = None
    checkpoint_storage_config: dict[str, Any] | None = None
    default_compute_pool: str | None = None
    default_aux_pool: str | None = None
    agent_user_group: dict[str, Any] | None = None
    cluster_namespace_meta: dict[str, Any] | None = None
    cluster_quota_pairs: dict[str, Any] | None = None

    def refuse_unserved(self) -> None:
        """Refuse what this master does not have, instead of dropping it.

        Raises:
            InvalidArgumentError: a field has a value that would have no effect.
        """
        for name in ("default_compute_pool", "default_aux_pool"):
            if getattr(self, name) not in (None, "", POOL):
                raise InvalidArgumentError(
                    f"This master has one resource pool, {POOL!r}: leave out `{name}`."
                )
        if any((self.agent_user_group or {}).values()):
            raise InvalidArgumentError(
                "`agentUserGroup` has no effect: tasks run under the account of the master. Leave it out."
            )
        if self.cluster_namespace_meta or self.cluster_quota_pairs:
            raise InvalidArgumentError(
                "Namespaces and quotas are for Kubernetes, which this master does not use."
            )


@router.get("")
def listing(
    master: MasterDep,
    caller: CallerDep,
    page: PageDep,
    name: Annotated[str, Query(description="Part of the name, in upper or lower case.")] = "",
    exact: Annotated[str, Query(alias="nameCaseSensitive", description="The whole name.")] = "",
    archived: Annotated[bool | None, Query(description="Only archived, or only other ones.")] = None,
    pinned: Annotated[
        bool | None, Query(description="Only those that the caller pinned, or the others.")
    ] = None,
    users: Annotated[list[str], Query(description="Only those of users with these names.")] = [],  # noqa: B006 - FastAPI copies it
    user_ids: Annotated[list[int], Query(alias="userIds", description="Only those of these users.")] = [],  # noqa: B006
    sort_by: Annotated[str, Query(alias="sortBy")] = "SORT_BY_UNSPECIFIED",
) -> Response:
    """List workspaces."""
    column = _ORDERS[choice(sort_by, "SORT_BY_", list(_ORDERS))]
    query = select(WorkspaceRow).join(UserRow, UserRow.id == WorkspaceRow.owner_id)
    query = query.order_by(column.desc() if page.is_descending else column)
    if name:
        query = query.where(func.lower(WorkspaceRow.name).contains(name.lower(), autoescape=True))
    if exact:
        query = query.where(WorkspaceRow.name == exact)
    if archived is not None:
        query = query.where(WorkspaceRow.is_archived == archived)
    if users:
        query = query.where(UserRow.username.in_(users))
    if user_ids:
        query = query.where(WorkspaceRow.owner_id.in_(user_ids))
    if pinned is not None:
        of_caller = select(PinRow.workspace_id).where(PinRow.user_id == caller.user_id)
        query = query.where(WorkspaceRow.id.in_(of_caller) if pinned else WorkspaceRow.id.not_in(of_caller))
    with master.store.reading() as session:
        rows = session.scalars(query).all()
        return reply(
            paged("workspaces", rows, page, lambda part: workspace_shapes(session, part, caller.user_id))
        )


@router.post("")
def create(
    master: MasterDep, caller: CallerDep, request: Annotated[WorkspaceBody, body(WorkspaceBody)]
) -> Response:
    """Create a workspace."""
    request.refuse_unserved()
    with master.store.writing() as tx:
        row = workspaces.create(tx, caller, request.name or "", request.checkpoint_storage_config)
        workspace_id = row.id
    # The original client reads the bindings of Kubernetes, of which there are none.
    return reply({"workspace": _detail(master, workspace_id, caller.user_id), "namespaceBindings": {}})


@router.get("/{workspace_id}")
def detail(master: MasterDep, caller: CallerDep, workspace_id: int) -> Response:
    """Describe a workspace."""
    return reply({"workspace": _detail(master, workspace_id, caller.user_id)})


@router.patch("/{workspace_id}")
def change(
    master: MasterDep,
    caller: CallerDep,
    workspace_id: int,
    request: Annotated[WorkspaceBody, body(WorkspaceBody)],
) -> Response:
    """Change the name of a workspace, or where its experiments store checkpoints."""
    request.refuse_unserved()
    changes = {"name": request.name, "checkpoint_storage": request.checkpoint_storage_config}
    with master.store.writing() as tx:
        workspaces.change(tx, caller, workspace_id, changes)
    return reply({"workspace": _detail(master, workspace_id, caller.user_id), "namespaceBindings": {}})


@router.delete("/{workspace_id}")
def delete(master: MasterDep, caller: CallerDep, workspace_id: int) -> Response:
    """Delete a workspace with its projects and experiments, in the background if it has any."""
    with master.store.writing() as tx:
        is_done = bulk.delete_workspace(tx, caller, workspace_id)
    return reply({"completed": is_done})


@router.post("/{workspace_id}/archive")
def archive(master: MasterDep, caller: CallerDep, workspace_id: int) -> Response:
    """Archive a workspace with its projects, which take no experiments then."""
    with master.store.writing() as tx:
        workspaces.archive(tx, caller, workspace_id, archived=True)
    return reply()


@router.post("/{workspace_id}/unarchive")
def unarchive(master: MasterDep, caller: CallerDep, workspace_id: int) -> Response:
    """Unarchive a workspace."""
    with master.store.writing() as tx:
        workspaces.archive(tx, caller, workspace_id, archived=False)
    return reply()


@router.post("/{workspace_id}/pin")
def pin(master: MasterDep, caller: CallerDep, workspace_id: int) -> Response:
    """Pin a workspace for the caller."""
    with master.store.writing() as tx:
        workspaces.pin(tx, caller, workspace_id)
    return reply()


@router.post("/{workspace_id}/unpin")
def unpin(master: MasterDep, caller: CallerDep, workspace_id: int) -> Response:
    """Unpin a workspace for the caller."""
    with master.store.writing() as tx:
        workspaces.unpin(tx, caller, workspace_id)
    return reply()


@router.get("/{workspace_id}/projects")
def projects(
    master: MasterDep,
    workspace_id: int,
    page: PageDep,
    name: Annotated[str, Query(description="The whole name.")] = "",
    archived: Annotated[bool | None, Query(description="Only archived, or only other ones.")] = None,
    users: Annotated[list[str], Query(description="Only those of users with these names.")] = [],  # noqa: B006 - FastAPI copies it
    user_ids: Annotated[list[int], Query(alias="userIds", description="Only those of these users.")] = [],  # noqa: B006
    sort_by: Annotated[str, Query(alias="sortBy")] = "SORT_BY_UNSPECIFIED",
) -> Response:
    """List the projects of a workspace; of all workspaces, if its number is 0."""
    query = select(ProjectRow).join(UserRow, UserRow.id == ProjectRow.owner_id)
    with master.store.reading() as session:
        if workspace_id:
            workspaces.find_workspace(session, workspace_id)
            query = query.where(ProjectRow.workspace_id == workspace_id)
        if name:
            query = query.where(ProjectRow.name == name)
        if users:
            query = query.where(UserRow.username.in_(users))
        if user_ids:
            query = query.where(ProjectRow.owner_id.in_(user_ids))
        return reply(listed_projects(session, query, page, sort_by, archived))


@router.get("/{workspace_id}/available-resource-pools")
def pools(master: MasterDep, workspace_id: int, page: PageDep) -> Response:
    """List the resource pools that a workspace may use: the one of this master."""
    with master.store.reading() as session:
        workspaces.find_workspace(session, workspace_id)
    return reply(paged("resourcePools", [POOL], page, list))


def _detail(master: EmbeddedMaster, workspace_id: int, user_id: int) -> dict[str, Any]:
    with master.store.reading() as session:
        row = workspaces.find_workspace(session, workspace_id)
        return workspace_shapes(session, [row], user_id)[0]
