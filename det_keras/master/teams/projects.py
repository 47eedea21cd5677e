"""Projects: named collections of experiments, each in a workspace."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from det_keras.master.accounts.auth import Caller
from det_keras.master.database.models import ProjectRow, WorkspaceRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from det_keras.master.teams.workspaces import (
    FIRST,
    UNCATEGORIZED,
    checked_name,
    find_workspace,
    refuse_others,
    show_anew,
)

_LONGEST_KEY = 5
_DELETE = "delete"
_KEY = re.compile(rf"[A-Z0-9]{{1,{_LONGEST_KEY}}}")


def ensure_first(tx: Transaction, owner_id: int) -> None:
    """Create the first workspace with its project, if this is the first start."""
    if tx.scalar(select(WorkspaceRow.id).limit(1)) is not None:
        return
    workspace = WorkspaceRow(name=UNCATEGORIZED, owner_id=owner_id)
    tx.add(workspace)
    tx.flush()
    project = ProjectRow(workspace_id=workspace.id, name=UNCATEGORIZED, key=_free_key(tx, UNCATEGORIZED))
    project.owner_id = owner_id
    tx.add(project)


def find_project(session: Session, project_id: int) -> ProjectRow:
    """Return the project with a number.

    Raises:
        NotFoundError: it does not exist.
    """
    row = session.get(ProjectRow, project_id)
    if row is None:
        raise NotFoundError(f"project '{project_id}' not found")
    return row


def find_by_key(session: Session, key: str) -> ProjectRow:
    """Return the project with a key.

    Raises:
        NotFoundError: it does not exist.
    """
    row = session.scalar(select(ProjectRow).where(ProjectRow.key == key.upper()))
    if row is None:
        raise NotFoundError(f"project with the key '{key}' not found")
    return row


def is_closed(session: Session, project: ProjectRow) -> bool:
    """Return whether a project or its workspace is archived."""
    return project.is_archived or find_workspace(session, project.workspace_id).is_archived


def create(
    tx: Transaction, owner_id: int, workspace_id: int, name: str, *, description: str = "", key: str = ""
) -> ProjectRow:
    """Create a project.

    Args:
        tx: the transaction.
        owner_id: number of its owner.
        workspace_id: number of its workspace, which is not the first one.
        name: of at most 80 characters, unique in the workspace.
        description: of any length.
        key: up to five letters and digits, unique on the master; empty to make one of the name.

    Raises:
        ApiError: the workspace does not exist, is archived or is the first one, or a value is taken or invalid.
    """
    _open_workspace(tx, workspace_id)
    row = ProjectRow(
        workspace_id=workspace_id,
        name=_free_name(tx, workspace_id, name),
        key=_given_key(tx, key) if key else _free_key(tx, name),
        description=description,
        owner_id=owner_id,
    )
    tx.add(row)
    tx.flush()
    return row


def change(tx: Transaction, caller: Caller, project_id: int, changes: Mapping[str, Any]) -> ProjectRow:
    """Change a project.

    Args:
        tx: the transaction.
        caller: who changes it; only the owners of project and workspace and administrators change name and key.
        project_id: number of the project.
        changes: `name`, `description` and `key`; absent ones stay.

    Raises:
        ApiError: it does not exist, belongs to somebody else, is archived or is the first one, or a value is invalid.
    """
    wanted = {name: value for name, value in changes.items() if value is not None}
    row = find_project(tx, project_id)
    given = {name for name, value in wanted.items() if value != getattr(row, name)}
    row = _changeable(tx, caller, project_id, "rename", is_free=not given & {"name", "key"})
    _refuse_closed(tx, row)
    if "name" in given:
        row.name = _free_name(tx, row.workspace_id, wanted["name"])
        show_anew(tx, ProjectRow.id == project_id)
    if "key" in given:
        row.key = _given_key(tx, wanted["key"])
    row.description = wanted.get("description", row.description)
    return row


def archive(tx: Transaction, caller: Caller, project_id: int, *, archived: bool) -> None:
    """Archive a project, which takes no experiments then, or unarchive it.

    Raises:
        ApiError: as for `change`.
    """
    row = _changeable(tx, caller, project_id, "archive" if archived else "unarchive")
    if find_workspace(tx, row.workspace_id).is_archived:
        raise FailedPreconditionError("Its workspace is archived. Unarchive that first.")
    row.is_archived = archived


def move(tx: Transaction, caller: Caller, project_id: int, workspace_id: int) -> None:
    """Move a project to another workspace, with its experiments.

    Raises:
        ApiError: as for `change`, or the destination is archived or is the first workspace.
    """
    row = _changeable(tx, caller, project_id, "move")
    _refuse_closed(tx, row)
    _open_workspace(tx, workspace_id)
    if workspace_id != row.workspace_id:
        _free_name(tx, workspace_id, row.name)
        row.workspace_id = workspace_id
        show_anew(tx, ProjectRow.id == project_id)


def set_notes(tx: Transaction, project_id: int, notes: Sequence[Mapping[str, str]]) -> list[Any]:
    """Replace the notes of a project, and return them.

    Raises:
        ApiError: it does not exist or is archived.
    """
    row = find_project(tx, project_id)
    _refuse_closed(tx, row)
    row.notes = [{"name": note["name"], "contents": note["contents"]} for note in notes]
    return row.notes


def deletable(tx: Transaction, caller: Caller, project_id: int) -> ProjectRow:
    """Return a project that the caller may delete.

    Raises:
        ApiError: as for `change`.
    """
    return _changeable(tx, caller, project_id, _DELETE)


def _changeable(
    tx: Transaction, caller: Caller, project_id: int, verb: str, *, is_free: bool = False
) -> ProjectRow:
    row = find_project(tx, project_id)
    if not is_free:
        owners = {row.owner_id, find_workspace(tx, row.workspace_id).owner_id}
        refuse_others(tx, caller, owners, f"{verb} the project {row.name!r}")
    if row.id == FIRST:
        raise FailedPreconditionError(f"The project {row.name!r} always exists and cannot be changed.")
    # A deletion that failed is begun again.
    if row.is_deleting and verb != _DELETE:
        raise FailedPreconditionError(f"The project {row.name!r} is being deleted.")
    return row


def _refuse_closed(tx: Transaction, row: ProjectRow) -> None:
    if is_closed(tx, row):
        raise FailedPreconditionError(f"The project {row.name!r}, or its workspace, is archived.")


def _open_workspace(tx: Transaction, workspace_id: int) -> WorkspaceRow:
    row = find_workspace(tx, workspace_id)
    if row.id == FIRST:
        raise FailedPreconditionError(
            f"The workspace {row.name!r} has one project only. Create a workspace for it."
        )
    if row.is_archived or row.is_deleting:
        raise FailedPreconditionError(f"The workspace {row.name!r} is archived or is being deleted.")
    return row


def _free_name(tx: Transaction, workspace_id: int, name: str) -> str:
    in_workspace = (ProjectRow.workspace_id == workspace_id) & (ProjectRow.name == checked_name(name))
    if tx.scalar(select(ProjectRow.id).where(in_workspace)) is not None:
        raise AlreadyExistsError(f"The workspace has a project {name!r} already. Choose another name.")
    return name


def _given_key(tx: Transaction, key: str) -> str:
    key = key.upper()
    if not _KEY.fullmatch(key):
        raise InvalidArgumentError(
            f"`key` must have 1 to {_LONGEST_KEY} letters and digits, received {key!r}."
        )
    if _is_taken(tx, key):
        raise AlreadyExistsError(f"Another project has the key {key!r}. Choose another one.")
    return key


def _free_key(tx: Transaction, name: str) -> str:
    start = re.sub(r"[^A-Z0-9]", "", name.upper())[:3] or "P"
    candidates = (f"{start}{number or ''}"[-_LONGEST_KEY:] for number in itertools.count())
    return next(key for key in candidates if not _is_taken(tx, key))


def _is_taken(tx: Transaction, key: str) -> bool:
    return bool(tx.scalar(select(func.count()).where(ProjectRow.key == key)))
