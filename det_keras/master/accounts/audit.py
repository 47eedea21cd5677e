"""The record of who changed what: read by those whom it concerns, and deleted by its age alone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, false, func, or_, select
from sqlalchemy.orm import Session

from det_keras.master.accounts.auth import Caller
from det_keras.master.accounts.users import find_user
from det_keras.master.database.models import AuditRow, TrialRow, UserRow
from det_keras.master.database.store import Store
from det_keras.master.errors import InvalidArgumentError
from det_keras.protocol.values import now, timestamp

#: How long entries are kept by default, in days.
KEPT_DAYS = 365
#: Entries of one answer.
MOST_ENTRIES = 1_000
_LONGEST_NAME = 64
# Refused logins that are recorded in a minute: nobody fills the disk.
_MOST_REFUSED = 60
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Wanted:
    """Which entries are asked for.

    Attributes:
        username: what this user did; empty for all.
        kind: of the thing, such as ``experiment``; empty for all.
        object_id: its number or name; empty for all of the kind.
        since: not before this time; None for no limit.
    """

    username: str = ""
    kind: str = ""
    object_id: str = ""
    since: datetime | None = None


class AuditTrail:
    """Reads the record, and adds what belongs to no transaction.

    Args:
        store: the database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        # The latest refused logins that were recorded.
        self._refused: deque[datetime] = deque(maxlen=_MOST_REFUSED)

    def listed(
        self, caller: Caller, wanted: Wanted, offset: int, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return entries as JSON, latest first, and how many there are in all.

        Administrators see everything; others what they did, and what was done with what is theirs. The addresses of
        others are for administrators alone.

        Args:
            caller: who asks.
            wanted: which entries.
            offset: how many are skipped.
            limit: the most to return.

        Raises:
            InvalidArgumentError: a thing is asked for without its kind.
        """
        if wanted.object_id and not wanted.kind:
            raise InvalidArgumentError("Name the kind of the object too, such as experiment.")
        with self._store.reading() as session:
            is_admin = find_user(session, caller.user_id).admin
            condition = and_(*_conditions(session, caller, wanted, is_admin=is_admin))
            total = session.scalar(select(func.count()).select_from(AuditRow).where(condition)) or 0
            rows = session.scalars(
                select(AuditRow).where(condition).order_by(AuditRow.id.desc()).offset(offset).limit(limit)
            ).all()
        return [_shape(row, caller, is_admin=is_admin) for row in rows], total

    def note_refused_login(self, username: str, address: str) -> None:
        """Record a login with a wrong password; a name that no user has may be a password, and is not stored."""
        time = now()
        with self._lock:
            if len(self._refused) == _MOST_REFUSED and time - self._refused[0] < _MINUTE:
                return
            self._refused.append(time)
        with self._store.writing() as tx:
            user = tx.scalar(select(UserRow).where(UserRow.username == username.lower()))
            tx.add(
                AuditRow(
                    made_at=time,
                    user_id=None,
                    address=address,
                    verb="refused login",
                    kind="user",
                    object_id="" if user is None else str(user.id),
                    owner_id=None if user is None else user.id,
                    detail="unknown name" if user is None else user.username[:_LONGEST_NAME],
                )
            )


def killer(session: Session, things: Sequence[tuple[str, int | str]], since: datetime | None) -> str:
    """Return the name of the user who last killed one of some things; empty if no user did.

    Args:
        session: to read with.
        things: the kind of each and its number, such as an experiment and its trial.
        since: when the attempt began that was killed: what ended before was killed before.
    """
    one_of = [and_(AuditRow.kind == kind, AuditRow.object_id == str(number)) for kind, number in things]
    found = session.scalar(
        select(AuditRow.username)
        .where(or_(*one_of), AuditRow.verb == "kill")
        .where(AuditRow.id.is_not(None) if since is None else AuditRow.made_at >= since)
        .order_by(AuditRow.id.desc())
        .limit(1)
    )
    return found or ""


def older_than(days: int) -> ColumnElement[bool]:
    """Return the condition for entries that are so many days old."""
    return AuditRow.made_at <= now() - timedelta(days=days)


def _conditions(
    session: Session, caller: Caller, wanted: Wanted, *, is_admin: bool
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if not is_admin:
        conditions.append(or_(AuditRow.user_id == caller.user_id, AuditRow.owner_id == caller.user_id))
    if wanted.username:
        user_id = session.scalar(select(UserRow.id).where(UserRow.username == wanted.username.lower()))
        conditions.append(false() if user_id is None else AuditRow.user_id == user_id)
    if wanted.kind:
        conditions.append(_about(session, wanted.kind, wanted.object_id))
    if wanted.since is not None:
        conditions.append(AuditRow.made_at >= wanted.since)
    return conditions or [AuditRow.id.is_not(None)]


def _about(session: Session, kind: str, object_id: str) -> ColumnElement[bool]:
    """Return the condition for what was done with a thing, or with what belongs to it."""
    if not object_id:
        return AuditRow.kind == kind
    about = [
        and_(AuditRow.kind == kind, AuditRow.object_id == object_id),
        and_(AuditRow.of_kind == kind, AuditRow.of_id == object_id),
    ]
    if kind == "trial" and object_id.isdecimal() and len(object_id) < len(str(1 << 63)):
        trial = session.get(TrialRow, int(object_id))
        if trial is not None:
            # What was done with its experiment was done with the trial.
            about.append(and_(AuditRow.kind == "experiment", AuditRow.object_id == str(trial.experiment_id)))
    return or_(*about)


def _shape(row: AuditRow, caller: Caller, *, is_admin: bool) -> dict[str, Any]:
    return {
        "id": row.id,
        "time": timestamp(row.made_at),
        "userId": row.user_id,
        "username": row.username,
        "tokenId": row.token_id,
        "allocationId": row.allocation_id,
        "address": row.address if is_admin or row.user_id in (caller.user_id, None) else None,
        "verb": row.verb,
        "kind": row.kind,
        "objectId": row.object_id,
        "ofKind": row.of_kind,
        "ofId": row.of_id,
        "detail": row.detail,
    }
