"""Workspaces: named collections of projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from det_keras import storage
from det_keras.config import load_experiment_config
from det_keras.errors import ConfigError
from det_keras.master.accounts.auth import Caller
from det_keras.master.accounts.users import find_user
from det_keras.master.database.change_feed import Subject
from det_keras.master.database.models import ExperimentRow, PinRow, ProjectRow, WorkspaceRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from det_keras.protocol.values import now

#: The first workspace, and its project, in which everything is that names no other. Neither can be changed.
UNCATEGORIZED = "Uncategorized"
FIRST = 1
#: Characters of a name.
LONGEST_NAME = 80
_DELETE = "delete"


def find_workspace(session: Session, workspace_id: int) -> WorkspaceRow:
    """Return the workspace with a number.

    Raises:
        NotFoundError: it does not exist.
    """
    row = session.get(WorkspaceRow, workspace_id)
    if row is None:
        raise NotFoundError(f"workspace '{workspace_id}' not found")
    return row


def create(
    tx: Transaction, caller: Caller, name: str, checkpoint_storage: Mapping[str, Any] | None = None
) -> WorkspaceRow:
    """Create a workspace, which its owner has pinned.

    Args:
        tx: the transaction.
        caller: its owner.
        name: of at most 80 characters, unique on the master.
        checkpoint_storage: where its experiments store checkpoints whose configs do not say; None for the master's
            default.

    Raises:
        AlreadyExistsError: another workspace has the name.
        InvalidArgumentError: the name is blank or too long, or the storage cannot be used.
    """
    row = WorkspaceRow(name=_free_name(tx, name), owner_id=caller.user_id)
    row.checkpoint_storage = _checked_storage(checkpoint_storage)
    tx.add(row)
    tx.flush()
    pin(tx, caller, row.id)
    return row


def change(tx: Transaction, caller: Caller, workspace_id: int, changes: Mapping[str, Any]) -> WorkspaceRow:
    """Change a workspace.

    Args:
        tx: the transaction.
        caller: its owner, or an administrator.
        workspace_id: number of the workspace.
        changes: `name` and `checkpoint_storage`, of which {} returns to the master's default; absent ones stay.

    Raises:
        ApiError: it does not exist, belongs to somebody else, is archived or is the first one, or a value is invalid.
    """
    row = _changeable(tx, caller, workspace_id, "rename")
    if row.is_archived:
        raise FailedPreconditionError(f"The workspace {row.name!r} is archived. Unarchive it first.")
    name = changes.get("name")
    if name is not None and name != row.name:
        row.name = _free_name(tx, name)
        show_anew(tx, ProjectRow.workspace_id == workspace_id)
    if changes.get("checkpoint_storage") is not None:
        row.checkpoint_storage = _checked_storage(changes["checkpoint_storage"])
    return row


def archive(tx: Transaction, caller: Caller, workspace_id: int, *, archived: bool) -> None:
    """Archive a workspace with all its projects, or unarchive it.

    Raises:
        ApiError: as for `change`.
    """
    _changeable(tx, caller, workspace_id, "archive" if archived else "unarchive").is_archived = archived


def pin(tx: Transaction, caller: Caller, workspace_id: int) -> None:
    """Pin a workspace for a user; no effect if it is pinned.

    Raises:
        NotFoundError: it does not exist.
    """
    find_workspace(tx, workspace_id)
    if tx.get(PinRow, (caller.user_id, workspace_id)) is None:
        tx.add(PinRow(user_id=caller.user_id, workspace_id=workspace_id, pinned_at=now()))


def unpin(tx: Transaction, caller: Caller, workspace_id: int) -> None:
    """Unpin a workspace for a user; no effect if it is not pinned.

    Raises:
        NotFoundError: it does not exist.
    """
    find_workspace(tx, workspace_id)
    of_caller = (PinRow.user_id == caller.user_id) & (PinRow.workspace_id == workspace_id)
    row = tx.scalar(select(PinRow).where(of_caller))
    if row is not None:
        tx.delete(row)


def deletable(tx: Transaction, caller: Caller, workspace_id: int) -> WorkspaceRow:
    """Return a workspace that the caller may delete.

    Raises:
        ApiError: as for `change`.
    """
    return _changeable(tx, caller, workspace_id, _DELETE)


def refuse_others(session: Session, caller: Caller, owner_ids: set[int], what: str) -> None:
    """Refuse a change by somebody who is neither an owner nor an administrator.

    Args:
        session: to read with.
        caller: who wants to make it.
        owner_ids: numbers of the owners.
        what: the change, such as ``archive the workspace 'vision'``.

    Raises:
        PermissionDeniedError: the caller is none of them, or is a task.
    """
    if caller.is_task:
        raise PermissionDeniedError(f"A task may not {what}.")
    if caller.user_id not in owner_ids and not find_user(session, caller.user_id).admin:
        raise PermissionDeniedError(f"Only the owner and administrators may {what}.")


def show_anew(tx: Transaction, condition: ColumnElement[bool]) -> None:
    """Have open pages and tables read experiments again, whose project or workspace is shown with them.

    Args:
        tx: the transaction that changes it.
        condition: which projects.
    """
    query = select(ExperimentRow.id).join(ProjectRow, ProjectRow.id == ExperimentRow.project_id)
    tx.subjects |= {Subject("experiment", number) for number in tx.scalars(query.where(condition))}


def checked_name(name: str) -> str:
    """Return a name of a workspace or project.

    Raises:
        InvalidArgumentError: it is blank, too long or has characters that are not printed.
    """
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise InvalidArgumentError(
            f"`name` must have 1 to {LONGEST_NAME} characters that are printed, received {name!r}."
        )
    return name


def _changeable(tx: Transaction, caller: Caller, workspace_id: int, verb: str) -> WorkspaceRow:
    row = find_workspace(tx, workspace_id)
    refuse_others(tx, caller, {row.owner_id}, f"{verb} the workspace {row.name!r}")
    if row.id == FIRST:
        raise FailedPreconditionError(f"The workspace {row.name!r} always exists and cannot be changed.")
    # A deletion that failed is begun again.
    if row.is_deleting and verb != _DELETE:
        raise FailedPreconditionError(f"The workspace {row.name!r} is being deleted.")
    return row


def _free_name(tx: Transaction, name: str) -> str:
    if tx.scalar(select(WorkspaceRow.id).where(WorkspaceRow.name == checked_name(name))) is not None:
        raise AlreadyExistsError(f"There is a workspace {name!r} already. Choose another name.")
    return name


def _checked_storage(section: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not section:
        return None
    try:
        config = load_experiment_config({"checkpoint_storage": section}, alone=True).config
        storage.from_config(config.checkpoint_storage.to_dict())
    except ConfigError as error:
        raise InvalidArgumentError(str(error)) from None
    return dict(section)
