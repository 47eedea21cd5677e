"""Access tokens: logins for programs, with a description and an end, which their users revoke."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from det_keras.master.accounts.auth import Accounts, Caller
from det_keras.master.accounts.users import find_user
from det_keras.master.database.models import AccessTokenRow, UserRow
from det_keras.master.database.store import Store
from det_keras.master.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from det_keras.protocol.values import now, timestamp

#: Valid tokens of one user.
MOST_TOKENS = 1_000
#: Characters of a description.
LONGEST_DESCRIPTION = 1_000
# Of one that does not say.
_LIFESPAN = timedelta(days=30)
_LONGEST_LIFESPAN = timedelta(days=36_500)
_NEVER = "-1"
_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)


@dataclass(frozen=True)
class Wanted:
    """Which tokens a list has.

    Attributes:
        username: only those of this user; empty for all that the caller sees.
        ids: only these; empty for all.
        with_inactive: also revoked and expired ones.
    """

    username: str = ""
    ids: Sequence[int] = ()
    with_inactive: bool = False


class AccessTokens:
    """Creates, lists, changes and revokes access tokens.

    Args:
        store: the database.
        accounts: knows which tokens are valid.
    """

    def __init__(self, store: Store, accounts: Accounts) -> None:
        self._store = store
        self._accounts = accounts

    def create(
        self, caller: Caller, user_id: int, lifespan: str = "", description: str = ""
    ) -> tuple[str, dict[str, Any]]:
        """Create a token; return it, which is not stored, and what is known of it as JSON.

        Args:
            caller: the user, or an administrator.
            user_id: as whom the token acts; 0 for the caller.
            lifespan: such as ``72h`` or ``1h30m``; ``-1`` for no end; empty for 30 days.
            description: what it is for.

        Raises:
            PermissionDeniedError: the caller is a task, or neither the user nor an administrator.
            NotFoundError: the user does not exist.
            FailedPreconditionError: the user is inactive, or has too many tokens.
            InvalidArgumentError: the lifespan or the description is invalid.
        """
        expires_at = _end(lifespan)
        with self._store.writing() as tx:
            _check_may_manage(tx, caller, user_id or caller.user_id)
            user = find_user(tx, user_id or caller.user_id)
            if not user.active:
                raise FailedPreconditionError(f"The user {user.username!r} is inactive.")
            is_valid = (AccessTokenRow.user_id == user.id) & AccessTokenRow.is_revoked.is_(False)
            if (tx.scalar(select(func.count()).where(is_valid)) or 0) >= MOST_TOKENS:
                raise FailedPreconditionError(f"A user has at most {MOST_TOKENS} tokens. Revoke one first.")
            token, row = self._accounts.issue_access(tx, user, expires_at)
            row.description = description
            tx.flush()
            return token, _shape(row)

    def listed(self, caller: Caller, wanted: Wanted) -> list[dict[str, Any]]:
        """Return what is known of tokens, in the order in which they were made; administrators see those of all users.

        Raises:
            PermissionDeniedError: the caller is a task, or asks for tokens of others.
            NotFoundError: the user, or a token of `wanted.ids`, does not exist.
        """
        query = select(AccessTokenRow).join(UserRow, UserRow.id == AccessTokenRow.user_id)
        with self._store.reading() as session:
            if wanted.username:
                user_id = session.scalar(
                    select(UserRow.id).where(UserRow.username == wanted.username.lower())
                )
                if user_id is None:
                    raise NotFoundError(f"user '{wanted.username}' not found")
                _check_may_manage(session, caller, user_id)
                query = query.where(AccessTokenRow.user_id == user_id)
            elif caller.is_task or not find_user(session, caller.user_id).admin:
                _check_may_manage(session, caller, caller.user_id)
                query = query.where(AccessTokenRow.user_id == caller.user_id)
            if wanted.ids:
                query = query.where(AccessTokenRow.id.in_(wanted.ids))
            rows = session.scalars(query.order_by(AccessTokenRow.id)).all()
        missing = set(wanted.ids) - {row.id for row in rows}
        if missing:
            raise NotFoundError(f"token '{min(missing)}' not found")
        # One that is asked for by its number is shown in any state.
        return [_shape(row) for row in rows if wanted.with_inactive or wanted.ids or _is_active(row)]

    def change(
        self, caller: Caller, token_id: int, *, description: str | None = None, is_revoked: bool = False
    ) -> dict[str, Any]:
        """Describe a token anew, or revoke it, which ends it at once and for good; return what is known of it.

        Raises:
            PermissionDeniedError: the caller is neither the user nor an administrator.
            NotFoundError: the token does not exist.
        """
        with self._store.writing() as tx:
            row = tx.get(AccessTokenRow, token_id)
            if row is None:
                raise NotFoundError(f"token '{token_id}' not found")
            _check_may_manage(tx, caller, row.user_id)
            row.description = row.description if description is None else description
            if is_revoked and not row.is_revoked:
                self._accounts.revoke_access(tx, [row])
            return _shape(row)


def _check_may_manage(session: Session, caller: Caller, user_id: int) -> None:
    if caller.is_task or caller.allocation_id is not None:
        raise PermissionDeniedError("A task may not manage access tokens.")
    if user_id != caller.user_id and not find_user(session, caller.user_id).admin:
        raise PermissionDeniedError("Only administrators manage access tokens of other users.")


def _end(lifespan: str) -> datetime | None:
    if lifespan == _NEVER:
        return None
    if not lifespan:
        return now() + _LIFESPAN
    found = _DURATION.fullmatch(lifespan)
    parts = [int(part or 0) for part in found.groups()] if found else [0]
    length = timedelta(hours=parts[0], minutes=parts[1], seconds=parts[2]) if found else timedelta()
    if not timedelta() < length <= _LONGEST_LIFESPAN:
        raise InvalidArgumentError(
            f"`lifespan` must be a time such as 72h or 1h30m, of at most {_LONGEST_LIFESPAN.days} days, or -1 "
            f"for no end. Received {lifespan!r}."
        )
    return now() + length


def _is_active(row: AccessTokenRow) -> bool:
    return not row.is_revoked and (row.expires_at is None or row.expires_at > now())


def _shape(row: AccessTokenRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "userId": row.user_id,
        "createdAt": timestamp(row.made_at),
        "expiry": timestamp(row.expires_at),
        "revoked": row.is_revoked,
        "tokenType": "TOKEN_TYPE_ACCESS_TOKEN",
        "description": row.description,
    }
