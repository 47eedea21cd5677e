"""The database: sessions to read, transactions to write, and the migration of the schema.

One master owns its database, so writers take turns on a lock of this process. Readers never wait for them
(SQLite in WAL mode, or PostgreSQL). Actions that must follow a committed change, such as waking a waiter, are
queued on the transaction and run after its commit.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from det_keras.errors import DetError
from det_keras.master.database.migrations import HEAD
from det_keras.master.database.notifier import Notifier

__all__ = ["Store", "Transaction"]

logger = logging.getLogger(__name__)


class Transaction(Session):
    """A session that is committed as a whole, with the actions that follow its commit."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.consequences: list[Callable[[], object]] = []
        self.topics: set[str] = set()

    def after_commit(self, action: Callable[[], object]) -> None:
        """Call `action` after the commit, in the order of registration; not after a rollback."""
        self.consequences.append(action)

    def notify(self, topic: str) -> None:
        """Wake the waiters of `topic` after the commit; not after a rollback."""
        self.topics.add(topic)


class Store:
    """The master's database.

    Args:
        url: a URL of SQLAlchemy: ``sqlite:////path/master.db`` or ``postgresql+...``.
        notifier: wakes waiting requests after commits.
    """

    def __init__(self, url: str, notifier: Notifier) -> None:
        self._engine = _create_engine(url)
        self._notifier = notifier
        self._lock = threading.Lock()
        self._readers = sessionmaker(self._engine, expire_on_commit=False)
        self._writers = sessionmaker(self._engine, class_=Transaction, expire_on_commit=False)
        #: The number of committed transactions. A reader compares it with an earlier value to see whether
        #: anything has changed.
        self.changes = 0

    @staticmethod
    def url_of(path: Path) -> str:
        """Return the URL of a SQLite database."""
        return f"sqlite:///{path}"

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine."""
        return self._engine

    def migrate(self) -> None:
        """Migrate the database to the current schema.

        Raises:
            DetError: a newer release wrote the database.
        """
        current = self._schema_version()
        if current == HEAD:
            return
        # Imported here: it takes as long as the rest of the start, and most starts migrate nothing.
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option(
            "script_location", str(Path(__file__).parent / "migrations").replace("%", "%%")
        )
        try:
            with self._engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            raise DetError(
                f"The database has schema {current!r}, which this release does not know. "
                "A newer release wrote it: use that release, or another DET_KERAS_HOME."
            ) from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """Yield a session that reads one consistent state of the database and changes nothing."""
        with self._readers() as session:
            yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Yield a transaction that is committed if the block raises nothing.

        It must not be nested: the lock of writers is not reentrant. Waiters are woken, and the queued actions run,
        after the commit and after the lock is released. An action may therefore open a transaction of its own, and
        another thread may have committed a further change before the action runs.
        """
        with self._lock, self._writers() as transaction:
            with transaction.begin():
                yield transaction
            consequences, topics = transaction.consequences, transaction.topics
        self.changes += 1
        for topic in topics:
            self._notifier.notify(topic)
        for action in consequences:
            try:
                action()
            except Exception:
                # The change is committed. The dispatcher finds out what the failed action should have done.
                logger.exception("An action after a committed change failed.")

    @contextlib.contextmanager
    def adding(self) -> Iterator[Connection]:
        """Yield a connection for plain statements, committed as by `writing`, without waking any waiter.

        Creating a session takes as long as such a statement.
        """
        with self._lock, self._engine.begin() as connection:
            yield connection
        self.changes += 1

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _schema_version(self) -> str | None:
        try:
            with self._engine.connect() as connection:
                version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        except DBAPIError:
            return None
        return None if version is None else str(version)


def _create_engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, pool_size=10, max_overflow=50, connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: object) -> None:
        # The driver would open transactions at the first write and leave DDL outside of them. `_begin` opens them.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        # Sent through the driver: through SQLAlchemy it takes as long as storing a small row.
        connection.connection.driver_connection.execute("BEGIN")

    return engine
