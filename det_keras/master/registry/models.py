"""Models of the registry: create, find, change, archive and delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete as delete_rows
from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.accounts.auth import Caller
from det_keras.master.database.lookups import refuse_overtaken
from det_keras.master.database.models import ModelRow, ModelVersionRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from det_keras.master.teams.placing import open_workspace
from det_keras.master.teams.workspaces import refuse_others
from det_keras.protocol.registry import LONGEST_NAME, MOST_LABELS, name_problem
from det_keras.protocol.values import now


def find_model(session: Session, identifier: str) -> ModelRow:
    """Return a model.

    Args:
        session: to read with.
        identifier: its name, in upper or lower case, or its number as text.

    Raises:
        NotFoundError: it does not exist.
    """
    if identifier.isascii() and identifier.isdigit():
        condition = ModelRow.id == int(identifier)
    else:
        condition = ModelRow.folded_name == identifier.casefold()
    row = session.scalar(select(ModelRow).where(condition))
    if row is None:
        raise NotFoundError(f"model '{identifier}' not found")
    return row


def create(
    tx: Transaction,
    caller: Caller,
    name: str,
    fields: Mapping[str, Any],
    workspace: tuple[int, str] = (0, ""),
) -> ModelRow:
    """Create a model.

    Args:
        tx: the transaction.
        caller: its owner, or a task of the owner.
        name: unique on the master, whatever the case of its letters.
        fields: `description`, `notes`, `labels` and `meta`, as far as they are given.
        workspace: number and name of its workspace, one of which may be empty; both are for the first one.

    Raises:
        AlreadyExistsError: there is a model of the name.
        InvalidArgumentError: the name or a field is invalid.
        NotFoundError: the workspace does not exist or is archived.
    """
    time = now()
    row = ModelRow(
        name=_free_name(tx, name),
        folded_name=name.casefold(),
        owner_id=caller.user_id,
        workspace_id=open_workspace(tx, *workspace),
        aliases={},
        creation_time=time,
        last_updated_time=time,
    )
    set_fields(row, fields)
    tx.add(row)
    tx.flush()
    return row


def change(tx: Transaction, identifier: str, changes: Mapping[str, Any]) -> ModelRow:
    """Change a model; any user may.

    Args:
        tx: the transaction.
        identifier: its name or number.
        changes: `name`, `description`, `notes`, `labels` and `meta`; those that are absent or None stay. And
            `if_unchanged`: texts that the caller has read.

    Raises:
        AbortedError: a text is not as `if_unchanged` says.
        ApiError: it does not exist or is archived, or the name is taken, or a value is invalid.
    """
    row = open_model(tx, identifier)
    refuse_overtaken(row, f"the model {row.name!r}", changes.get("if_unchanged"))
    name = changes.get("name")
    if name is not None and name != row.name:
        row.name = _free_name(tx, name, but=row.id)
        row.folded_name = name.casefold()
    set_fields(row, changes)
    row.last_updated_time = now()
    return row


def move(tx: Transaction, caller: Caller, identifier: str, workspace: tuple[int, str]) -> ModelRow:
    """Move a model to another workspace, named by number or by name.

    Raises:
        ApiError: the model or the workspace does not exist or is archived, or the model belongs to somebody else.
    """
    row = open_model(tx, identifier)
    refuse_others(tx, caller, {row.owner_id}, f"move the model {row.name!r}")
    row.workspace_id = open_workspace(tx, *workspace)
    row.last_updated_time = now()
    return row


def archive(tx: Transaction, caller: Caller, identifier: str, *, archived: bool) -> None:
    """Archive a model, which takes no changes and no versions then, or unarchive it.

    Raises:
        ApiError: it does not exist or belongs to somebody else.
    """
    row = find_model(tx, identifier)
    refuse_others(
        tx, caller, {row.owner_id}, f"{'archive' if archived else 'unarchive'} the model {row.name!r}"
    )
    row.is_archived = archived
    row.last_updated_time = now()


def delete(tx: Transaction, caller: Caller, identifier: str) -> None:
    """Delete a model with its versions, whose checkpoints stay.

    Raises:
        ApiError: it does not exist or belongs to somebody else.
    """
    row = find_model(tx, identifier)
    refuse_others(tx, caller, {row.owner_id}, f"delete the model {row.name!r}")
    tx.execute(delete_rows(ModelVersionRow).where(ModelVersionRow.model_id == row.id))
    tx.delete(row)


def open_model(session: Session, identifier: str) -> ModelRow:
    """Return a model that may be changed.

    Raises:
        NotFoundError: it does not exist.
        FailedPreconditionError: it is archived.
    """
    row = find_model(session, identifier)
    if row.is_archived:
        raise FailedPreconditionError(f"The model {row.name!r} is archived. Unarchive it first.")
    return row


def set_fields(row: ModelRow | ModelVersionRow, fields: Mapping[str, Any]) -> None:
    """Set the describing fields that are given.

    Raises:
        InvalidArgumentError: a label is blank, or there are too many.
    """
    for name in ("description", "comment", "notes", "meta"):
        if fields.get(name) is not None:
            setattr(row, name, fields[name])
    if fields.get("labels") is not None:
        row.labels = _clean_labels(fields["labels"])


def _free_name(tx: Transaction, name: str, but: int | None = None) -> str:
    problem = name_problem(name)
    if problem:
        raise InvalidArgumentError(problem)
    taken = tx.scalar(select(ModelRow).where(ModelRow.folded_name == name.casefold()))
    if taken is not None and taken.id != but:
        raise AlreadyExistsError(f"There is a model {taken.name!r} already.")
    return name


def _clean_labels(labels: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(labels))
    if len(found) > MOST_LABELS or any(not label.strip() or len(label) > LONGEST_NAME for label in found):
        raise InvalidArgumentError(
            f"`labels` must be at most {MOST_LABELS} texts of 1 to {LONGEST_NAME} characters, received {labels!r}."
        )
    return found
