"""Views of pages that users saved: an address under a name, for oneself or for all."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from det_keras.master.accounts.auth import Caller
from det_keras.master.database.models import SavedViewRow, UserRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError
from det_keras.master.wire import is_own_address
from det_keras.protocol.values import now, timestamp

#: Characters of an address.
LONGEST_ADDRESS = 10_000
#: Views of one user.
MOST_VIEWS = 1_000


def shapes(session: Session, caller: Caller) -> list[dict[str, Any]]:
    """Return the views that a user sees, by name."""
    query = (
        select(SavedViewRow, UserRow.username)
        .join(UserRow, UserRow.id == SavedViewRow.owner_id)
        .where(or_(SavedViewRow.owner_id == caller.user_id, SavedViewRow.is_shared.is_(True)))
        .order_by(func.lower(SavedViewRow.name), SavedViewRow.id)
    )
    return [
        {
            "id": row.id,
            "name": row.name,
            "address": row.address,
            "isShared": row.is_shared,
            "isOwn": row.owner_id == caller.user_id,
            "username": username,
            "savedAt": timestamp(row.saved_at),
        }
        for row, username in session.execute(query)
    ]


def save(tx: Transaction, caller: Caller, *, name: str, address: str, is_shared: bool) -> int:
    """Save a view; one of the same name of the same user is replaced.

    Args:
        tx: the transaction.
        caller: its owner.
        name: of the view.
        address: of a page of this master, with its settings.
        is_shared: whether all users see it.

    Returns:
        Its number.

    Raises:
        PermissionDeniedError: the caller is a task.
        InvalidArgumentError: the address is not one of this master, or the user has too many views.
    """
    if caller.is_task:
        raise PermissionDeniedError("Views belong to users; a task cannot save any.")
    if not is_own_address(address):
        raise InvalidArgumentError(f"`address` must be that of a page of this master, received {address!r}.")
    of_caller = SavedViewRow.owner_id == caller.user_id
    row = tx.scalar(select(SavedViewRow).where(of_caller, SavedViewRow.name == name))
    if row is None:
        if (tx.scalar(select(func.count()).where(of_caller)) or 0) >= MOST_VIEWS:
            raise InvalidArgumentError(f"A user may save {MOST_VIEWS} views. Delete one first.")
        row = SavedViewRow(owner_id=caller.user_id, name=name)
        tx.add(row)
    row.address, row.is_shared, row.saved_at = address, is_shared, now()
    tx.flush()
    return row.id


def delete(tx: Transaction, caller: Caller, view_id: int) -> None:
    """Delete a view.

    Raises:
        NotFoundError: the caller has no view with this number.
    """
    row = tx.get(SavedViewRow, view_id)
    if row is None or row.owner_id != caller.user_id or caller.is_task:
        raise NotFoundError(f"You have no view {view_id}.")
    tx.delete(row)
