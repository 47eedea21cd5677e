"""Creating and changing users, and the permissions this needs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.home import Home
from det_keras.master.accounts.auth import DEFAULT_USER, Accounts, Caller, password_hash
from det_keras.master.database.models import AccessTokenRow, UserRow
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from det_keras.protocol.values import hash_password, now

_WIRE_PASSWORD = re.compile(r"[0-9a-f]{128}")
_SHORTEST_PASSWORD = 8
_LONGEST_NAME = 255


@dataclass(frozen=True)
class UserChanges:
    """Changes of a user; None leaves a field as it is.

    Attributes:
        is_hashed: the password is the hash that clients send.
    """

    username: str | None = None
    display_name: str | None = None
    admin: bool | None = None
    active: bool | None = None
    password: str | None = None
    is_hashed: bool = False

    @property
    def needs_admin(self) -> bool:
        """Whether the changes include fields that only administrators may change."""
        return any(value is not None for value in (self.username, self.admin, self.active))


class Users:
    """Creates and changes users.

    Args:
        store: the database.
        accounts: the users' tokens.
        home: the data root with the files of the first passwords.
    """

    def __init__(self, store: Store, accounts: Accounts, home: Home) -> None:
        self._store = store
        self._accounts = accounts
        self._home = home

    def refuse_others(self, caller: Caller) -> None:
        """Refuse callers that are no administrators.

        Raises:
            PermissionDeniedError: the caller is none, or a task.
        """
        with self._store.reading() as session:
            require_admin(session, caller)

    def create(self, caller: Caller, changes: UserChanges) -> int:
        """Create a user and return its number; a password is required.

        Raises:
            PermissionDeniedError: the caller is not an administrator.
            InvalidArgumentError: the name or password is invalid.
            AlreadyExistsError: the name is taken.
        """
        with self._store.reading() as session:
            require_admin(session, caller)
        # Before the transaction: it takes long, and no other writer has its turn during a transaction.
        hashed = password_hash(_checked_password(changes))
        with self._store.writing() as tx:
            require_admin(tx, caller)
            user = UserRow(username=_free_name(tx, changes.username or ""), modified_at=now())
            user.admin, user.active = bool(changes.admin), changes.active is not False
            user.display_name = changes.display_name or ""
            user.password_hash = hashed
            tx.add(user)
            tx.flush()
            return user.id

    def change(self, caller: Caller, user_id: int, changes: UserChanges) -> None:
        """Change a user. Administrators may change any user, others their own display name and password.

        A new password ends the other logins of the user. Those of a user who is deactivated are refused, as are access
        tokens, and end for good when the user is activated again.

        Args:
            caller: the user that makes the change; a task may not.
            user_id: the user to change.
            changes: the new values.

        Raises:
            PermissionDeniedError: the caller may not make this change.
            NotFoundError: the user does not exist.
            InvalidArgumentError: the name or password is invalid.
            AlreadyExistsError: the name is taken.
        """
        _refuse_tasks(caller)
        if caller.is_program and changes.password is not None:
            raise PermissionDeniedError("An access token may not change passwords. Log in to do that.")
        # Before the transaction, as in `create`.
        hashed = None if changes.password is None else password_hash(_checked_password(changes))
        with self._store.writing() as tx:
            if changes.needs_admin or user_id != caller.user_id:
                require_admin(tx, caller)
            user = find_user(tx, user_id)
            _refuse_lockout(user, changes)
            if changes.username is not None and changes.username.lower() != user.username:
                user.username = _free_name(tx, changes.username)
            user.display_name = user.display_name if changes.display_name is None else changes.display_name
            user.admin = user.admin if changes.admin is None else changes.admin
            is_activated = changes.active is True and not user.active
            user.active = user.active if changes.active is None else changes.active
            user.modified_at = now()
            if hashed is not None:
                self._set_password(tx, caller, user, hashed)
            if is_activated:
                self._accounts.forget_sessions(tx, user.id)
                of_user = (AccessTokenRow.user_id == user.id) & AccessTokenRow.is_revoked.is_(False)
                self._accounts.revoke_access(tx, tx.scalars(select(AccessTokenRow).where(of_user)).all())
            self._accounts.user_changed(tx, user)

    def _set_password(self, tx: Transaction, caller: Caller, user: UserRow, hashed: str) -> None:
        user.password_hash = hashed
        self._accounts.forget_sessions(tx, user.id, but=caller.token_hash)
        # The files contain the first passwords, which are no longer valid.
        first = {DEFAULT_USER: self._home.password_file, "admin": self._home.admin_password_file}
        if user.username in first:
            path = first[user.username]
            tx.after_commit(lambda: path.unlink(missing_ok=True))


def find_user(session: Session, user_id: int) -> UserRow:
    """Return the user with a number.

    Raises:
        NotFoundError: it does not exist.
    """
    row = session.get(UserRow, user_id)
    if row is None:
        raise NotFoundError(f"user '{user_id}' not found")
    return row


def require_admin(session: Session, caller: Caller, what: str = "change users") -> None:
    """Refuse a call of somebody who is no administrator, and of a task.

    Args:
        session: to read with.
        caller: who makes it.
        what: what only administrators may do.

    Raises:
        PermissionDeniedError: the caller may not.
    """
    _refuse_tasks(caller, what)
    if not find_user(session, caller.user_id).admin:
        raise PermissionDeniedError(
            "Only administrators may do that. Log in as `admin`; "
            "`det deploy local credentials --admin` prints the first password."
        )


def _refuse_tasks(caller: Caller, what: str = "change users") -> None:
    # A training script must not be able to take over its owner's account.
    if caller.is_task or caller.allocation_id is not None:
        raise PermissionDeniedError(f"A task may not {what}.")


def _refuse_lockout(user: UserRow, changes: UserChanges) -> None:
    is_built_in = user.username in (DEFAULT_USER, "admin")
    if is_built_in and (changes.active is False or changes.username not in (None, user.username)):
        raise InvalidArgumentError(
            f"The user {user.username!r} is built in: it keeps its name and stays active."
        )
    if user.username == "admin" and changes.admin is False:
        raise InvalidArgumentError("The user 'admin' stays an administrator.")


def _free_name(session: Session, name: str) -> str:
    clean = name.strip().lower()
    if not clean or len(clean) > _LONGEST_NAME or not clean.isprintable():
        raise InvalidArgumentError(
            f"A username must have 1 to {_LONGEST_NAME} printable characters, received {name!r}."
        )
    if session.scalar(select(UserRow.id).where(UserRow.username == clean)) is not None:
        raise AlreadyExistsError(f"user '{clean}' already exists")
    return clean


def _checked_password(changes: UserChanges) -> str:
    """Return the password as clients send it. An empty password is refused."""
    password = changes.password or ""
    if changes.is_hashed:
        if not _WIRE_PASSWORD.fullmatch(password):
            raise InvalidArgumentError(
                "A password must not be empty, and a hashed password must have 128 hexadecimal digits."
            )
        return password
    if len(password) < _SHORTEST_PASSWORD:
        raise InvalidArgumentError(f"A password must have at least {_SHORTEST_PASSWORD} characters.")
    return hash_password(password)
