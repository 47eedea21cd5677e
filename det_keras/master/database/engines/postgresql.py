"""PostgreSQL, through psycopg.

All writers share one connection, and its session holds an advisory lock of the database. This is why two masters can
never both write: PostgreSQL gives the lock to one session, a transaction ends with its session, and a session that is
lost loses the lock and its open transaction together. A master whose connection broke therefore connects again and
takes the lock before its next write. If another master has it, or had it in the meantime (the row `holder` then names
that one), this master ends itself: what it knows in memory is out of date.

A connection may break during a commit. The master then asks the server for the fate of that transaction before it
answers the call, so that no caller repeats what was committed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, NoReturn

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from det_keras.errors import DetError
from det_keras.master.database.engines.base import Database, HeldElsewhereError
from det_keras.master.errors import ApiError, InvalidArgumentError, UnavailableError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as error:
    raise DetError(
        "PostgreSQL requires the package `psycopg`: `pip install 'det_keras[postgresql]'`."
    ) from error

logger = logging.getLogger(__name__)

# "detkeras" in ASCII. Advisory locks are numbers, one space of them per database.
_LOCK = 0x6465746B65726173
_OLDEST = 13
# Settings of the connection that a URL may override: a server that vanished without a word is noticed in half a minute.
_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
    "target_session_attrs": "read-write",
}
# After a kill, the server ends the session of the former master within milliseconds.
_LOCK_PATIENCE_S = 3.0
_PROBE_S = 0.05
# While the server is away, callers learn so at once instead of waiting for a connection each.
_RECONNECT_S = 0.5
_HOLDING_SESSION = """
    SELECT pid, backend_start::text, application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = %s AND objid = %s
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_HOLDER = "holder"


class PostgresqlDatabase(Database):
    """A database of a PostgreSQL server.

    Args:
        url: as libpq reads it, such as ``postgresql://user:password@host:5432/name?sslmode=require``.

    Raises:
        DetError: the URL is malformed.
    """

    is_shared = True

    def __init__(self, url: str) -> None:
        self._parameters = {**_DEFAULTS, **_parse(url)}
        # Times are read as they are stored, in UTC.
        self._parameters["options"] = f"{self._parameters.get('options', '')} -c TimeZone=UTC".strip()
        self.name = _name(self._parameters)
        self._id = str(uuid.uuid4())
        self._application = f"det_keras {socket.gethostname()[:32]} process {os.getpid()}"
        self._has_claimed = False
        # Pid and start of the last session that held the lock; a pid alone may be given to another session.
        self._session: tuple[int, str] | None = None
        self._settling = threading.Event()
        self._is_closed = False
        # The last failure to connect, and when.
        self._failure: psycopg.OperationalError | None = None
        self._failed_at = 0.0
        self.readers = _engine(self._connect_reader, pool_size=10, max_overflow=40)
        self.writers = _engine(self._connect_writer, pool_size=1, max_overflow=0)

    @property
    def is_settling(self) -> bool:
        """Whether a writer waits to learn if its commit took effect."""
        return self._settling.is_set()

    def refusal(self, error: Exception) -> ApiError | None:
        """Return how a call that failed with `error` is answered; None for an error of the program."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, psycopg.errors.ProgramLimitExceeded):
            # An entry of an index is limited to a third of a page; SQLite knows no such limit.
            return InvalidArgumentError(f"A name is too long for the database: {_reason(cause)}.")
        is_away = isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
        if is_away or isinstance(cause, PoolTimeoutError | psycopg.errors.ReadOnlySqlTransaction):
            return UnavailableError(f"The database {self.name} cannot be used: {_reason(cause)}.")
        return None

    def claim(self, **facts: str) -> None:
        """Record this master as the holder; after the migration, and while it holds the lock."""
        value = json.dumps({"id": self._id, "application": self._application, **facts})
        with self.writers.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO settings (name, value) VALUES (%s, %s)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (_HOLDER, value),
            )
        self._has_claimed = True

    def size_bytes(self) -> int:
        """Return how much the database occupies on its server."""
        with self.readers.connect() as connection:
            return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())

    def close(self) -> None:
        """Close the connections, and with them give up the lock."""
        self._is_closed = True
        self.writers.dispose()
        self.readers.dispose()

    def settle(self, transaction_id: str) -> bool:
        """Return whether a transaction was committed whose connection was lost during the commit.

        Waits until the server answers. A call that waits here gets no answer meanwhile. This is right: a client repeats
        an unanswered call only if repeating does no harm.

        Raises:
            HeldElsewhereError: another master has the database.
            psycopg.OperationalError: this master stops.
        """
        self._settling.set()
        try:
            while True:
                try:
                    with contextlib.closing(self._connect_writer()) as connection:
                        # The new session holds the lock, so the former one has ended: the answer is final.
                        query = "SELECT pg_xact_status(%s::xid8)"
                        row = connection.execute(query, [transaction_id]).fetchone()
                        return row is not None and row[0] == "committed"
                except psycopg.errors.InvalidParameterValue:
                    # The number is in the future: the server crashed before it had written anything of it.
                    return False
                except psycopg.OperationalError:
                    if self._is_closed:
                        raise
                    time.sleep(_RECONNECT_S)
        finally:
            self._settling.clear()

    def _connect_reader(self) -> psycopg.Connection[Any]:
        connection = self._connect(_ReaderConnection)
        # Every transaction of a reader sees one state. READ COMMITTED would show each query a state of its own.
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        return connection

    def _connect_writer(self) -> psycopg.Connection[Any]:
        connection = self._connect(_WriterConnection)
        connection.database = self
        try:
            connection.autocommit = True
            self._take_lock(connection)
            connection.autocommit = False
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, kind: type[psycopg.Connection[Any]]) -> Any:
        if self._failure is not None and time.monotonic() - self._failed_at < _RECONNECT_S:
            raise psycopg.OperationalError(str(self._failure))
        try:
            connection = kind.connect(
                make_conninfo(**self._parameters), application_name=self._application, client_encoding="utf8"
            )
        except psycopg.OperationalError as error:
            if self._failure is None:
                logger.warning("The database %s does not answer: %s.", self.name, _reason(error))
            self._failure, self._failed_at = error, time.monotonic()
            raise
        if self._failure is not None:
            logger.warning("The database %s answers again.", self.name)
            self._failure = None
        return connection

    def _take_lock(self, connection: psycopg.Connection[Any]) -> None:
        """Make a session the one that writes.

        Raises:
            HeldElsewhereError: another master has the database, or had it since this one lost it.
        """
        _check_server(connection, self.name)
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while not _value(connection, "SELECT pg_try_advisory_lock(%s)", _LOCK):
            held = connection.execute(_HOLDING_SESSION, [_LOCK >> 32, _LOCK & 0xFFFFFFFF]).fetchone()
            if held is not None and self._session == (held[0], held[1]):
                # Our own former session: the server has not noticed yet that its connection is lost.
                connection.execute("SELECT pg_terminate_backend(%s)", [held[0]])
            elif time.monotonic() > deadline:
                self._refuse(connection, "" if held is None else held[2])
            time.sleep(_PROBE_S)
        if self._has_claimed and _holder(connection).get("id") != self._id:
            self._refuse(connection, "")
        self._session = (
            connection.info.backend_pid,
            str(
                _value(
                    connection,
                    "SELECT backend_start::text FROM pg_stat_activity WHERE pid = %s",
                    connection.info.backend_pid,
                )
            ),
        )

    def _refuse(self, connection: psycopg.Connection[Any], application: str) -> NoReturn:
        holder = _holder(connection)
        # A master that is starting has not written the row yet: it may be that of an earlier one.
        if application in ("", holder.get("application")):
            facts = [holder.get("application") or "another master"]
            facts += [f"{name} {holder[name]}" for name in ("url", "home") if name in holder]
        else:
            facts = [application]
        raise HeldElsewhereError(
            f"The database {self.name} belongs to another master: {', '.join(facts)}. "
            "Stop that master first, or use another database."
        )


class _ReaderConnection(psycopg.Connection[Any]):  # type: ignore[misc]  # mypy does not follow the optional package
    """A connection of readers, which receives values in the binary format: times and numbers are not parsed."""

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        """Return a cursor."""
        return super().cursor(*arguments, **{"binary": True, **options})


class _WriterConnection(psycopg.Connection[Any]):  # type: ignore[misc]  # as above
    """The connection of the writers; its commits have a known outcome."""

    database: PostgresqlDatabase

    def commit(self) -> None:
        """Commit. If the connection is lost meanwhile, return only if the server has committed.

        Raises:
            psycopg.OperationalError: the transaction was not committed.
        """
        if self.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
            super().commit()
            return
        transaction_id = _value(self, "SELECT pg_current_xact_id_if_assigned()::text")
        try:
            super().commit()
        except psycopg.OperationalError:
            # Without a number it has only read: there is nothing whose fate could matter.
            if transaction_id is None:
                raise
            logger.warning("The connection to the database was lost during a commit; asking for its outcome.")
            if not self.database.settle(transaction_id):
                raise


def _engine(connect: Any, *, pool_size: int, max_overflow: int) -> Engine:
    engine = create_engine(
        "postgresql+psycopg://",
        creator=connect,
        pool_size=pool_size,
        max_overflow=max_overflow,
        # Two queries at the first connection, for types that we do not use.
        use_native_hstore=False,
    )
    event.listen(engine, "checkout", _refuse_closed)
    return engine


def _refuse_closed(connection: Any, *_: object) -> None:
    """Replace a connection that the server has closed while it was idle; without asking the server."""
    # An idle connection has nothing to read, except that it was closed.
    poll = select.poll()
    if not connection.closed:
        poll.register(connection.fileno(), select.POLLIN)
    if connection.closed or poll.poll(0):
        raise DisconnectionError


def _check_server(connection: psycopg.Connection[Any], name: str) -> None:
    version = connection.info.server_version // 10_000
    if version < _OLDEST:
        raise DetError(
            f"The database {name} is on PostgreSQL {version}. Version {_OLDEST} or newer is required."
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise DetError(
            f"The database {name} has the encoding {encoding}. Create it with `createdb --encoding=UTF8 "
            "--template=template0 NAME`."
        )


def _holder(connection: psycopg.Connection[Any]) -> Mapping[str, str]:
    try:
        value = _value(connection, "SELECT value FROM settings WHERE name = %s", _HOLDER)
    except psycopg.errors.UndefinedTable:
        # Before the first migration.
        return {}
    found: Mapping[str, str] = {} if value is None else json.loads(value)
    return found


def _value(connection: psycopg.Connection[Any], query: Any, *parameters: object) -> Any:
    row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]


def _parse(url: str) -> dict[str, Any]:
    with contextlib.suppress(psycopg.ProgrammingError):
        found = {name: value for name, value in conninfo_to_dict(url).items() if value is not None}
        # A password with such characters ends early for libpq, and what follows would be taken for other parts.
        parts = [str(found.get(name, "")) for name in ("host", "port", "dbname")]
        if not any("@" in part for part in parts) and set(parts[1]) <= set("0123456789,"):
            return found
    # Without libpq's text, which may quote a part of the password.
    raise DetError(
        "The database's URL cannot be read. It has the form postgresql://user:password@host:5432/name. "
        "Write characters such as @, :, / and % in a user or password as %40, %3A, %2F and %25."
    )


def _name(parameters: Mapping[str, Any]) -> str:
    user = f"{parameters['user']}@" if "user" in parameters else ""
    port = f":{parameters['port']}" if "port" in parameters else ""
    return f"postgresql://{user}{parameters.get('host', '')}{port}/{parameters.get('dbname', '')}"


def _reason(error: object) -> str:
    """Return an error of the driver in one line; libpq's texts contain no password."""
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join(line for line in lines if line and not line.startswith("Is the server running")).rstrip(
        "."
    )
