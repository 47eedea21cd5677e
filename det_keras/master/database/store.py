"""The database: sessions to read, transactions to write, and the schema brought up to date.

One master owns its database, so writers simply take turns on a lock of this process; readers never wait for
them (SQLite in WAL mode, or PostgreSQL). What has to happen outside once a change is certain, such as waking
a waiter, is queued on the transaction and done after its commit.
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
from det_keras.master.database.events import Notifier
from det_keras.master.database.migrations import HEAD

__all__ = ["Store", "Transaction"]

logger = logging.getLogger(__name__)


class Transaction(Session):
    """A session that is committed as a whole, and what follows its commit."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.consequences: list[Callable[[], object]] = []
        self.topics: set[str] = set()

    def after_commit(self, action: Callable[[], object]) -> None:
        """Call `action` once the change is certain."""
        self.consequences.append(action)

    def notify(self, topic: str) -> None:
        """Wake those who wait for `topic` once the change is certain."""
        self.topics.add(topic)


class Store:
    """The master's database.

    Args:
        url: of SQLAlchemy: ``sqlite:////path/master.db`` or ``postgresql+...``.
        notifier: carries the news of commits.
    """

    def __init__(self, url: str, notifier: Notifier) -> None:
        self._engine = _create_engine(url)
        self._notifier = notifier
        self._lock = threading.Lock()
        self._readers = sessionmaker(self._engine, expire_on_commit=False)
        self._writers = sessionmaker(self._engine, class_=Transaction, expire_on_commit=False)
        #: How many transactions were committed: who saw this number knows whether there is anything new.
        self.changes = 0

    @staticmethod
    def url_of(path: Path) -> str:
        """Return the URL of a SQLite database."""
        return f"sqlite:///{path}"

    @property
    def engine(self) -> Engine:
        """The connections."""
        return self._engine

    def migrate(self) -> None:
        """Bring the schema up to date.

        Raises:
            DetError: a newer release wrote the database.
        """
        current = self._schema_version()
        if current == HEAD:
            return
        # Imported here: it takes as long as the rest of the start, and most starts have nothing to migrate.
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
        """Yield a session that sees one state of the database and changes nothing."""
        with self._readers() as session:
            yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Yield a transaction that is committed when the block ends well. It must not be nested."""
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
                # The change is made; what failed to follow is found again by the dispatcher.
                logger.exception("What should follow a committed change failed.")

    @contextlib.contextmanager
    def adding(self) -> Iterator[Connection]:
        """Yield what runs bare statements, committed as `writing` commits; for what nobody has to be told of.

        Making a session takes as long as such a statement does.
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
        # The driver would open transactions at the first write and leave DDL outside of them. We say BEGIN.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        # By the driver: SQLAlchemy's own way to say so costs as much as storing a small row.
        connection.connection.driver_connection.execute("BEGIN")

    return engine
