"""In which project an experiment is, and in which workspace a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from det_keras.config import ExperimentConfig
from det_keras.master.database.models import ExperimentRow, PinRow, ProjectRow, TemplateRow, WorkspaceRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from det_keras.master.teams import webhooks
from det_keras.master.teams.projects import create as create_project
from det_keras.master.teams.projects import find_project, is_closed
from det_keras.master.teams.workspaces import FIRST, checked_name, find_workspace


@dataclass(frozen=True)
class Place:
    """Where a new experiment is put.

    Attributes:
        project_id: number of the project.
        checkpoint_storage: the `checkpoint_storage` of its workspace; None for the master's default.
    """

    project_id: int = FIRST
    checkpoint_storage: Mapping[str, Any] | None = None


def place_of(
    session: Session,
    config: ExperimentConfig,
    project_id: int | None = None,
    parent: ExperimentRow | None = None,
) -> Place:
    """Return where a new experiment is put: as the request or the config says, else beside its parent.

    Args:
        session: to read with.
        config: may name a workspace and a project.
        project_id: number of the project that the request names; None or 0 if it names none.
        parent: the experiment from which it is forked; None if it is not.

    Raises:
        NotFoundError: the workspace or the project does not exist.
        InvalidArgumentError: config and request name different projects.
        FailedPreconditionError: the project takes no experiments.
    """
    named = _named(session, config)
    if project_id and named is not None and named.id != project_id:
        raise InvalidArgumentError(
            f"The config names the project {named.name!r} ({named.id}), and the request project {project_id}. "
            "Name one of them."
        )
    project = find_project(session, project_id) if project_id else named
    if project is None:
        project = find_project(session, FIRST if parent is None else parent.project_id)
        if parent is not None and (project.is_deleting or is_closed(session, project)):
            project = find_project(session, FIRST)
    refuse_closed(session, project)
    return Place(project.id, find_workspace(session, project.workspace_id).checkpoint_storage)


def place_of_unmanaged(
    tx: Transaction, owner_id: int, config: ExperimentConfig, project_id: int | None
) -> int:
    """Return the number of the project of a new unmanaged experiment.

    Scripts that run elsewhere need nothing set up: a workspace and a project that do not exist are created.

    Args:
        tx: the transaction.
        owner_id: number of the user, who owns what is created.
        config: may name a workspace and a project.
        project_id: number of the project that the request names; None or 0 if it names none.

    Raises:
        ApiError: as for `place_of`, or the names are invalid.
    """
    name = config.workspace
    if name and not project_id:
        workspace = tx.scalar(select(WorkspaceRow).where(WorkspaceRow.name == name))
        if workspace is None:
            workspace = WorkspaceRow(name=checked_name(name), owner_id=owner_id)
            tx.add(workspace)
            tx.flush()
        in_workspace = (ProjectRow.workspace_id == workspace.id) & (ProjectRow.name == config.project)
        if tx.scalar(select(ProjectRow.id).where(in_workspace)) is None:
            create_project(tx, owner_id, workspace.id, config.project)
    return place_of(tx, config, project_id).project_id


def refuse_closed(session: Session, project: ProjectRow) -> None:
    """Refuse to put an experiment into a project, or to take one out.

    Raises:
        FailedPreconditionError: the project or its workspace is archived, or is being deleted.
    """
    if project.is_deleting or is_closed(session, project):
        raise FailedPreconditionError(
            f"The project {project.name!r}, or its workspace, is archived or is being deleted."
        )


def open_workspace(session: Session, workspace_id: int | None, name: str = "") -> int:
    """Return the number of the workspace in which a job is put.

    Args:
        session: to read with.
        workspace_id: as the request says; None or 0 if it says nothing.
        name: as the config says; empty if it says nothing. Without both it is the first one.

    Raises:
        NotFoundError: it does not exist, is archived or is being deleted.
    """
    row = find_workspace(session, workspace_id or FIRST)
    if name and not workspace_id:
        row = _named_workspace(session, name)
    if row.is_archived or row.is_deleting:
        raise NotFoundError(f"workspace '{row.id}' not found: it is archived or is being deleted")
    return row.id


def move(tx: Transaction, experiment: ExperimentRow, project_id: int) -> None:
    """Move an experiment to another project.

    Raises:
        NotFoundError: the project does not exist.
        FailedPreconditionError: one of the two projects is archived or is being deleted.
    """
    destination = find_project(tx, project_id)
    for project in (find_project(tx, experiment.project_id), destination):
        refuse_closed(tx, project)
    experiment.project_id = destination.id


def forget_if_deleted(tx: Transaction, project_id: int) -> None:
    """Delete a project that is being deleted and has no experiments left; likewise its workspace."""
    project = tx.get(ProjectRow, project_id)
    if project is None or not project.is_deleting:
        return
    if tx.scalar(select(func.count()).where(ExperimentRow.project_id == project_id)):
        return
    workspace_id = project.workspace_id
    tx.delete(project)
    tx.flush()
    forget_workspace_if_deleted(tx, workspace_id)


def forget_workspace_if_deleted(tx: Transaction, workspace_id: int) -> None:
    """Delete a workspace that is being deleted and has no projects left."""
    workspace = find_workspace(tx, workspace_id)
    if not workspace.is_deleting:
        return
    if tx.scalar(select(func.count()).where(ProjectRow.workspace_id == workspace_id)):
        return
    webhooks.delete_of_workspace(tx, workspace_id)
    for of_workspace in (PinRow, TemplateRow):
        tx.execute(delete(of_workspace).where(of_workspace.workspace_id == workspace_id))
    tx.delete(workspace)


def _named_workspace(session: Session, name: str) -> WorkspaceRow:
    row = session.scalar(select(WorkspaceRow).where(WorkspaceRow.name == name))
    if row is None:
        raise NotFoundError(f"workspace {name!r} not found. Create it with `det workspace create {name!r}`.")
    return row


def _named(session: Session, config: ExperimentConfig) -> ProjectRow | None:
    if not config.workspace:
        return None
    workspace = _named_workspace(session, config.workspace)
    in_workspace = (ProjectRow.workspace_id == workspace.id) & (ProjectRow.name == config.project)
    project = session.scalar(select(ProjectRow).where(in_workspace))
    if project is None:
        raise NotFoundError(
            f"project {config.project!r} not found in the workspace {workspace.name!r}. Create it with "
            f"`det project create {workspace.name!r} {config.project!r}`."
        )
    return project
