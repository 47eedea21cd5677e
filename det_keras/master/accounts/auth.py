"""The identity of callers: users, passwords and tokens.

Tokens are random and only their hashes are stored. All valid tokens are also held in memory, so that checking
a token needs no query. What is in memory changes with the commits and in their order (`Transaction.in_order`), and in
no other way: a token that a transaction deleted is invalid before its call is answered, and stays invalid.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Select, delete, select, update

from det_keras.files import write_file
from det_keras.home import Home
from det_keras.master.database.attribution import logged_in
from det_keras.master.database.models import AccessTokenRow, TokenRow, UserRow
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError
from det_keras.protocol.values import hash_password, now

#: The ordinary user as which the command line logs in.
DEFAULT_USER = "determined"

_ADMIN = "admin"
# How long a login is valid.
_SESSION = timedelta(days=7)
# Final metrics may still be on their way when the process has ended.
_GRACE = timedelta(seconds=30)
# How long a code for a browser's login is valid.
_WEB_CODE = timedelta(minutes=10)
#: Most logins of a user at a time; a further one ends the oldest. Scripts that log in again and again never log out.
MOST_SESSIONS = 1000


@dataclass(frozen=True)
class Caller:
    """The user or task that a token identifies.

    Attributes:
        user_id: the user, or the owner of the task.
        username: the name of that user.
        is_task: whether it is a task's token.
        token_hash: the hash of the token.
        allocation_id: the allocation that the token was issued for; None for a login.
        is_program: whether it is an access token: it is no login, and neither ends nor begins one.
        access_token_id: its number; None for a login or a task.
    """

    user_id: int
    username: str
    is_task: bool
    token_hash: str
    allocation_id: str | None = None
    is_program: bool = False
    access_token_id: int | None = None


@dataclass
class _Entry:
    caller: Caller
    expires_at: datetime | None
    is_active: bool


class Accounts:
    """Users and tokens.

    Args:
        store: the database.
        home: the data root, in which the first token and passwords are written for the owner of the account.
    """

    def __init__(self, store: Store, home: Home) -> None:
        self._store = store
        self._home = home
        self._entries: dict[str, _Entry] = {}
        # Codes that log a browser in once; they do not survive a restart.
        self._web_codes: dict[str, tuple[int, datetime]] = {}
        # Guards changes of both dicts. `caller` reads without it: a single `get` is atomic.
        self._lock = threading.Lock()

    def open(self) -> None:
        """Create the accounts at the first start, and the CLI's token if it is not valid; load all tokens."""
        with self._store.writing() as tx:
            self._create_users(tx)
            self._give_admin_a_password(tx)
            _forget_expired(tx)
            for row, user in tx.execute(
                select(TokenRow, UserRow).join(UserRow, UserRow.id == TokenRow.user_id)
            ):
                self._remember(row, user)
            valid = select(AccessTokenRow, UserRow).where(AccessTokenRow.is_revoked.is_(False))
            for access, user in tx.execute(valid.join(UserRow, UserRow.id == AccessTokenRow.user_id)):
                self._remember_access(access, user)
            self._ensure_cli_token(tx)

    def caller(self, token: str) -> Caller:
        """Return the caller that `token` identifies.

        Raises:
            UnauthenticatedError: the token is unknown or expired.
            PermissionDeniedError: the user is inactive.
        """
        entry = self._entries.get(_digest(token))
        if entry is None or (entry.expires_at is not None and entry.expires_at < now()):
            raise UnauthenticatedError("invalid credentials")
        if not entry.is_active:
            raise PermissionDeniedError("user is inactive")
        return entry.caller

    def login(self, username: str, password: str, *, is_hashed: bool) -> tuple[str, UserRow]:
        """Check a password; return a new session token and the user.

        Args:
            username: upper and lower case are the same.
            password: the password, or its hash as clients send it.
            is_hashed: whether `password` is the hash.

        Raises:
            InvalidArgumentError: `username` is empty.
            UnauthenticatedError: unknown user or wrong password.
            PermissionDeniedError: the user is inactive.
        """
        if not username:
            raise InvalidArgumentError("A username is required.")
        with self._store.reading() as session:
            user = session.scalar(select(UserRow).where(UserRow.username == username.lower()))
        wire_password = password if is_hashed or not password else hash_password(password)
        if not _is_right(user.password_hash if user is not None else None, wire_password) or user is None:
            raise UnauthenticatedError("invalid credentials")
        with self._store.writing() as tx:
            stored = tx.get(UserRow, user.id)
            # Checking a password takes long; it may have been changed meanwhile.
            if stored is None or stored.password_hash != user.password_hash:
                raise UnauthenticatedError("invalid credentials")
            token = self._log_in(tx, stored)
            stored.last_auth_at = now()
        return token, stored

    def web_code(self, caller: Caller) -> str:
        """Return a code that logs a browser in as the caller, once, within 10 minutes.

        Raises:
            PermissionDeniedError: the caller is a task.
        """
        if caller.is_task or caller.allocation_id is not None:
            raise PermissionDeniedError("A task cannot log in to the web pages.")
        if caller.is_program:
            raise PermissionDeniedError(
                "An access token cannot log a browser in: the login would outlive it."
            )
        code = secrets.token_urlsafe(16)
        with self._lock:
            self._web_codes = {key: value for key, value in self._web_codes.items() if value[1] > now()}
            self._web_codes[_digest(code)] = (caller.user_id, now() + _WEB_CODE)
        return code

    def redeem(self, code: str) -> str:
        """Return a session token for a code. The code cannot be used again.

        Raises:
            UnauthenticatedError: the code is unknown, used or old.
        """
        with self._store.writing() as tx:
            # Of two requests with the same code only one gets a token, and none after the user's logins were ended.
            with self._lock:
                user_id, expires_at = self._web_codes.pop(_digest(code), (0, now()))
            user = tx.get(UserRow, user_id)
            if user is None or expires_at <= now():
                raise UnauthenticatedError("invalid credentials")
            return self._log_in(tx, user)

    def logout(self, caller: Caller) -> None:
        """Delete the caller's session token.

        Raises:
            InvalidArgumentError: the token belongs to a task or a program.
        """
        if caller.is_task or caller.allocation_id is not None:
            raise InvalidArgumentError("A task cannot log out.")
        if caller.is_program:
            raise InvalidArgumentError("An access token is no login. `det token revoke ID` ends it.")
        with self._store.writing() as tx:
            tx.execute(delete(TokenRow).where(TokenRow.hash == caller.token_hash))
            tx.in_order(lambda: self._drop([caller.token_hash]))

    def forget_sessions(self, tx: Transaction, user_id: int, *, but: str | None = None) -> None:
        """End the logins of a user, and those that its codes would give; the token in the CLI's file stays valid.

        Args:
            tx: the logins end when it is committed.
            user_id: the user's number.
            but: hash of a token that stays valid; None for no exception.
        """
        self._end(tx, [digest for digest in tx.scalars(_sessions_of(user_id)) if digest != but])
        tx.in_order(lambda: self._forget_codes(user_id))

    def user_changed(self, tx: Transaction, user: UserRow) -> None:
        """Apply the new name and state of a user to its tokens once `tx` is committed."""
        user_id, username, is_active = user.id, user.username, user.active
        tx.in_order(lambda: self._apply(user_id, username, is_active=is_active))

    def issue(
        self,
        tx: Transaction,
        user: UserRow,
        *,
        is_task: bool = False,
        allocation_id: str | None = None,
        expires_at: datetime | None = None,
    ) -> str:
        """Return a new token; it is valid once `tx` is committed.

        Args:
            tx: stores the token's hash.
            user: the user that the token identifies, or the owner of the task.
            is_task: whether it is a task's token.
            allocation_id: the allocation with which the token expires; None for a login.
            expires_at: None for no expiry.
        """
        token = secrets.token_urlsafe(32)
        row = TokenRow(
            hash=_digest(token),
            user_id=user.id,
            is_task=is_task,
            allocation_id=allocation_id,
            expires_at=expires_at,
        )
        tx.add(row)
        tx.in_order(lambda: self._remember(row, user))
        return token

    def issue_access(
        self, tx: Transaction, user: UserRow, expires_at: datetime | None
    ) -> tuple[str, AccessTokenRow]:
        """Return a new access token and its row; it is valid once `tx` is committed."""
        token = secrets.token_urlsafe(32)
        row = AccessTokenRow(hash=_digest(token), user_id=user.id, expires_at=expires_at, made_at=now())
        tx.add(row)
        tx.in_order(lambda: self._remember_access(row, user))
        return token, row

    def revoke_access(self, tx: Transaction, rows: Sequence[AccessTokenRow]) -> None:
        """Revoke access tokens: they are invalid once `tx` is committed."""
        for row in rows:
            row.is_revoked = True
        digests = [row.hash for row in rows]
        tx.in_order(lambda: self._drop(digests))

    def end_allocation(self, tx: Transaction, allocation_id: str) -> None:
        """Let the tokens of an allocation expire, after a short delay for reports that are on their way."""
        expires_at = now() + _GRACE
        # Not as objects: this is a part of the time between two trials on a slot.
        ended = update(TokenRow).where(TokenRow.allocation_id == allocation_id)
        tx.execute(ended.values(expires_at=expires_at).execution_options(synchronize_session=False))
        tx.in_order(lambda: self._let_expire(allocation_id, expires_at))

    @staticmethod
    def admin_id(tx: Transaction) -> int:
        """Return the number of the first administrator."""
        return tx.scalars(select(UserRow.id).where(UserRow.username == _ADMIN)).one()

    def _create_users(self, tx: Transaction) -> None:
        if tx.scalar(select(UserRow).limit(1)) is not None:
            return
        password = secrets.token_urlsafe(12)
        write_file(self._home.password_file, password, mode=0o600, is_durable=True)
        tx.add(UserRow(username=_ADMIN, admin=True, modified_at=now()))
        # The ordinary user is created second, so that `admin` has number 1, as clients expect.
        tx.flush()
        tx.add(
            UserRow(
                username=DEFAULT_USER,
                password_hash=password_hash(hash_password(password)),
                modified_at=now(),
            )
        )
        tx.flush()

    def _give_admin_a_password(self, tx: Transaction) -> None:
        admin = tx.scalar(select(UserRow).where(UserRow.username == _ADMIN))
        if admin is None or admin.password_hash is not None:
            return
        password = secrets.token_urlsafe(12)
        write_file(self._home.admin_password_file, password, mode=0o600, is_durable=True)
        admin.password_hash = password_hash(hash_password(password))

    def _ensure_cli_token(self, tx: Transaction) -> None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if _digest(self._home.token_file.read_bytes().decode("ascii").strip()) in self._entries:
                return
        user = tx.scalars(select(UserRow).where(UserRow.username == DEFAULT_USER)).one()
        token = self.issue(tx, user)
        tx.after_commit(lambda: write_file(self._home.token_file, token, mode=0o600, is_durable=True))

    def _log_in(self, tx: Transaction, user: UserRow) -> str:
        """Return a token of a new login.

        Raises:
            PermissionDeniedError: the user is inactive.
        """
        if not user.active:
            raise PermissionDeniedError("user is inactive")
        logged_in(user)
        known = tx.scalars(_sessions_of(user.id)).all()
        self._end(tx, known[MOST_SESSIONS - 1 :])
        return self.issue(tx, user, expires_at=now() + _SESSION)

    def _end(self, tx: Transaction, digests: Sequence[str]) -> None:
        if digests:
            tx.execute(delete(TokenRow).where(TokenRow.hash.in_(digests)))
            tx.in_order(lambda: self._drop(digests))

    def _remember(self, row: TokenRow, user: UserRow) -> None:
        caller = Caller(user.id, user.username, row.is_task, row.hash, row.allocation_id)
        with self._lock:
            self._entries[row.hash] = _Entry(caller, row.expires_at, user.active)

    def _remember_access(self, row: AccessTokenRow, user: UserRow) -> None:
        caller = Caller(
            user.id,
            user.username,
            is_task=False,
            token_hash=row.hash,
            is_program=True,
            access_token_id=row.id,
        )
        with self._lock:
            self._entries[row.hash] = _Entry(caller, row.expires_at, user.active)

    def _let_expire(self, allocation_id: str, expires_at: datetime) -> None:
        time = now()
        with self._lock:
            for entry in self._entries.values():
                if entry.caller.allocation_id == allocation_id:
                    entry.expires_at = expires_at
            for digest in [digest for digest, entry in self._entries.items() if _is_over(entry, time)]:
                del self._entries[digest]

    def _drop(self, digests: Iterable[str]) -> None:
        with self._lock:
            for digest in digests:
                self._entries.pop(digest, None)

    def _apply(self, user_id: int, username: str, *, is_active: bool) -> None:
        with self._lock:
            for entry in self._entries.values():
                if entry.caller.user_id == user_id:
                    entry.caller = replace(entry.caller, username=username)
                    entry.is_active = is_active

    def _forget_codes(self, user_id: int) -> None:
        with self._lock:
            self._web_codes = {
                digest: value for digest, value in self._web_codes.items() if value[0] != user_id
            }


def page_token(token: str) -> str:
    """Return the token that a page of this master sends with every change that a cookie authenticates.

    A page of another site can make a browser send the cookie, but can read neither the cookie nor these pages.
    """
    return hmac.new(token.encode(), b"det_keras page", hashlib.sha256).hexdigest()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _is_over(entry: _Entry, time: datetime) -> bool:
    return entry.expires_at is not None and entry.expires_at < time


def _sessions_of(user_id: int) -> Select[str]:
    """Return the query for the logins of a user, newest first."""
    return (
        select(TokenRow.hash)
        .where(TokenRow.user_id == user_id, TokenRow.expires_at.is_not(None))
        .where(TokenRow.allocation_id.is_(None))
        .order_by(TokenRow.expires_at.desc())
    )


def _forget_expired(tx: Transaction) -> None:
    tx.execute(delete(TokenRow).where(TokenRow.expires_at < now()))


def password_hash(wire_password: str) -> str:
    """Return the hash that is stored for a password as clients send it."""
    # Imported here: only logins and the first start need it.
    import argon2

    return argon2.PasswordHasher().hash(wire_password)


def _is_right(stored: str | None, wire_password: str) -> bool:
    import argon2

    # A hash is checked for unknown users too, so that they take as long as wrong passwords.
    known = stored or password_hash(secrets.token_hex(8))
    try:
        argon2.PasswordHasher().verify(known, wire_password)
    except argon2.exceptions.VerificationError:
        return False
    return stored is not None
