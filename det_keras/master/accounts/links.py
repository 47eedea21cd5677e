"""Links to the report of an experiment that need no login.

A link is a random token, of which only the hash is stored. Nothing of it is kept in memory: each request looks into the
database, so that a link ends with the commit that revokes it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from det_keras.master.accounts.auth import Caller
from det_keras.master.accounts.users import find_user
from det_keras.master.database.lookups import find_experiment
from det_keras.master.database.models import SharedLinkRow, UserRow
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from det_keras.protocol import states
from det_keras.protocol.values import now, timestamp

#: Links of one experiment.
MOST_LINKS = 100
#: Days after which a link may end.
MOST_DAYS = 36_500
# 256 bits: whoever tries tokens finds none.
_TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


class SharedLinks:
    """The links of all experiments.

    Args:
        store: the database.
        is_allowed: whether links are served and made; an administrator allows it when the master is started.
    """

    def __init__(self, store: Store, *, is_allowed: bool) -> None:
        self._store = store
        self.is_allowed = is_allowed

    def find(self, token: str) -> int | None:
        """Return the number of the experiment that a link shows; None if there is no such link, or it has ended."""
        if not self.is_allowed or _TOKEN.fullmatch(token) is None:
            return None
        digest = _digest(token)
        query = select(SharedLinkRow).join(UserRow, UserRow.id == SharedLinkRow.maker_id)
        with self._store.reading() as session:
            row = session.scalar(query.where(SharedLinkRow.hash == digest, UserRow.active.is_(True)))
        if row is None or not hmac.compare_digest(row.hash, digest) or _is_over(row):
            return None
        return row.experiment_id

    def make(self, caller: Caller, experiment_id: int, days: int | None) -> tuple[str, dict[str, Any]]:
        """Make a link; return its token, which is not stored, and the link as JSON.

        Args:
            caller: the owner of the experiment, or an administrator.
            experiment_id: number of the experiment.
            days: after how many days it ends; None for never.

        Raises:
            PermissionDeniedError: the caller is somebody else.
            FailedPreconditionError: this master serves no links, or the experiment is being deleted.
            InvalidArgumentError: the experiment has too many links.
        """
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        with self._store.writing() as tx:
            _check_may_share(tx, caller, experiment_id)
            if not self.is_allowed:
                raise FailedPreconditionError(
                    "This master serves no shared links. Its administrator allows them with "
                    "`det deploy local cluster-up --shared-links`."
                )
            if find_experiment(tx, experiment_id).state == states.DELETING:
                raise FailedPreconditionError(f"Experiment {experiment_id} is being deleted.")
            of_experiment = SharedLinkRow.experiment_id == experiment_id
            tx.execute(delete(SharedLinkRow).where(of_experiment, SharedLinkRow.expires_at < now()))
            if (tx.scalar(select(func.count()).where(of_experiment)) or 0) >= MOST_LINKS:
                raise InvalidArgumentError(f"An experiment has at most {MOST_LINKS} links. Revoke one first.")
            made_at = now()
            row = SharedLinkRow(
                experiment_id=experiment_id,
                maker_id=caller.user_id,
                hash=_digest(token),
                made_at=made_at,
                expires_at=None if days is None else made_at + timedelta(days=days),
            )
            tx.add(row)
            tx.flush()
            return token, _shape(row, caller.username)

    def listed(self, caller: Caller, experiment_id: int) -> list[dict[str, Any]]:
        """Return the links of an experiment, without their tokens, in the order in which they were made.

        Raises:
            PermissionDeniedError: the caller is neither the owner nor an administrator.
        """
        query = (
            select(SharedLinkRow, UserRow.username)
            .join(UserRow, UserRow.id == SharedLinkRow.maker_id)
            .where(SharedLinkRow.experiment_id == experiment_id)
            .order_by(SharedLinkRow.id)
        )
        with self._store.reading() as session:
            _check_may_share(session, caller, experiment_id)
            return [_shape(row, username) for row, username in session.execute(query)]

    def revoke(self, caller: Caller, experiment_id: int, link_id: int | None = None) -> int:
        """End a link, or all links of an experiment; return how many.

        Raises:
            PermissionDeniedError: the caller is neither the owner nor an administrator.
            NotFoundError: the experiment has no such link.
        """
        with self._store.writing() as tx:
            _check_may_share(tx, caller, experiment_id)
            of_experiment = select(SharedLinkRow).where(SharedLinkRow.experiment_id == experiment_id)
            if link_id is not None:
                of_experiment = of_experiment.where(SharedLinkRow.id == link_id)
            rows = tx.scalars(of_experiment).all()
            if link_id is not None and not rows:
                raise NotFoundError(f"Experiment {experiment_id} has no shared link {link_id}.")
            for row in rows:
                tx.delete(row)
            return len(rows)


def delete_links(tx: Transaction, experiment_id: int) -> None:
    """End all links of an experiment that is deleted."""
    tx.execute(delete(SharedLinkRow).where(SharedLinkRow.experiment_id == experiment_id))


def _check_may_share(session: Session, caller: Caller, experiment_id: int) -> None:
    experiment = find_experiment(session, experiment_id)
    if caller.is_task:
        # Code that is trained could publish what its owner would not.
        raise PermissionDeniedError("Shared links belong to users; a task can neither make nor see any.")
    if experiment.owner_id != caller.user_id and not find_user(session, caller.user_id).admin:
        raise PermissionDeniedError(
            f"Only the owner of experiment {experiment_id} and administrators make, list and revoke its shared links."
        )


def _shape(row: SharedLinkRow, username: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "username": username,
        "madeAt": timestamp(row.made_at),
        "expiresAt": None if row.expires_at is None else timestamp(row.expires_at),
        "isOver": _is_over(row),
    }


def _is_over(row: SharedLinkRow) -> bool:
    return row.expires_at is not None and row.expires_at <= now()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
