"""The database: sessions to read, transactions to write, and the migration of the schema.

One master owns its database, so writers take turns in this process (`turns`): rows are committed in the order of their
numbers. Readers never wait for them (SQLite in WAL mode, or PostgreSQL). Actions that must follow a committed change,
such as waking a waiter, are queued on the transaction and run after its commit.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from det_keras.errors import DetError
from det_keras.master.database.attribution import Changes, attribute_changes, author
from det_keras.master.database.change_feed import ChangeFeed, Subject
from det_keras.master.database.changes import QueueChanges, collect_changes
from det_keras.master.database.engines import Database, HeldElsewhereError
from det_keras.master.database.migrations import HEAD
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.turns import Turns
from det_keras.master.errors import UnavailableError

logger = logging.getLogger(__name__)

# The values that transactions leave to later ones: searches of which a trial reported.
_MOST_LEFT = 1000
_SETTLING = "The connection to the database was lost during a commit, and its outcome is not known yet."
_LOST = "Another master has taken the database."


class Transaction(Session):
    """A session that is committed as a whole, with the actions that follow its commit."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.consequences: list[Callable[[], object]] = []
        self.ordered: list[Callable[[], object]] = []
        self.topics: set[str] = set()
        #: What this transaction leaves to the next ones if it is committed; see `take`.
        self.kept: dict[Any, Any] = {}
        self.queue_changes = QueueChanges()
        #: What it has read, to its end.
        self.rows: list[object] = []
        #: What it changed of the things that pages show.
        self.subjects: set[Subject] = set()
        #: What it changed for a caller, for the record of changes; None if there is no caller.
        self.changes: Changes | None = None

    def after_commit(self, action: Callable[[], object]) -> None:
        """Call `action` after the commit, in the order of registration; not after a rollback."""
        self.consequences.append(action)

    def in_order(self, action: Callable[[], object]) -> None:
        """Call `action` after the commit and before the next transaction; not after a rollback.

        For what is kept in memory of rows: it changes in the order of the commits. It must not wait, nor fail.
        """
        self.ordered.append(action)

    def take(self, key: Any) -> Any:
        """Return what an earlier transaction left under `key`; None for nothing.

        Such a value was derived from rows, and deriving it again takes long. It belongs to this transaction from now
        on, which changes it together with the rows. If this transaction fails, the value is lost.
        """
        if key not in self.kept and key in self._left:
            self.kept[key] = self._left.pop(key)
        return self.kept.get(key)

    def all_kept(self) -> list[Any]:
        """Return the keys of all values that `take` would return."""
        return [*self._left, *self.kept]

    @property
    def _left(self) -> dict[Any, Any]:
        left: dict[Any, Any] = self.info["left"]
        return left

    def notify(self, topic: str) -> None:
        """Wake the waiters of `topic` after the commit; not after a rollback."""
        self.topics.add(topic)


collect_changes(Transaction)
attribute_changes(Transaction)


@event.listens_for(Transaction, "loaded_as_persistent")
def _hold(transaction: Transaction, row: object) -> None:
    # A session holds its rows weakly: a transaction that needs one again would read it again.
    transaction.rows.append(row)


class Store:
    """The master's database.

    Args:
        database: the connections.
        notifier: wakes waiting requests after commits.
        on_lost: called once if another master took the database: this master must end.
    """

    def __init__(
        self, database: Database, notifier: Notifier, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._on_lost = on_lost
        self._turns = Turns()
        self._readers = sessionmaker(database.readers, expire_on_commit=False)
        # What transactions left to later ones, least recently used first.
        self._left: dict[Any, Any] = {}
        self._writers = sessionmaker(database.writers, class_=Transaction, expire_on_commit=False)
        #: What committed transactions changed.
        self.feed = ChangeFeed()
        #: Whether another master has taken the database.
        self.is_lost = False
        #: Called in each transaction that changes the states of experiments, before its commit.
        self.companions: list[Callable[[Transaction], object]] = []
        #: Called with the changes of tasks after each commit that has any, before waiters are woken.
        self.observers: list[Callable[[QueueChanges], object]] = []

    @property
    def database(self) -> Database:
        """The connections."""
        return self._database

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine of the writers."""
        return self._database.writers

    def migrate(self) -> None:
        """Migrate the database to the current schema.

        Raises:
            DetError: a newer release wrote the database, or it cannot be used.
        """
        try:
            self._migrate()
        except (DBAPIError, PoolTimeoutError) as error:
            self._raise_refusal(error)
            raise

    def _migrate(self) -> None:
        current = self.schema_version()
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
            with self.engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            raise DetError(
                f"The database has schema {current!r}, which this release does not know. "
                "A newer release wrote it: use that release, or another DET_KERAS_HOME."
            ) from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """Yield a session that reads one consistent state of the database and changes nothing.

        Raises:
            UnavailableError: the database cannot be used at the moment.
        """
        try:
            with self._readers() as session:
                yield session
        except (DBAPIError, PoolTimeoutError) as error:
            self._raise_refusal(error)
            raise

    @contextlib.contextmanager
    def writing(self, *, is_report: bool = False) -> Iterator[Transaction]:
        """Yield a transaction that is committed if the block raises nothing.

        It must not be nested: the lock of writers is not reentrant. Waiters are woken, and the queued actions run,
        after the commit and after the lock is released. An action may therefore open a transaction of its own, and
        another thread may have committed a further change before the action runs.

        Args:
            is_report: whether it stores what a trial reports, which comes before all other writers.

        Raises:
            UnavailableError: the database cannot be used at the moment; nothing was committed.
        """
        caller = None if is_report else author()
        recorded: set[tuple[str, str]] = set()
        with self._turn(is_report=is_report), self._writers() as transaction:
            transaction.info["left"] = self._left
            transaction.changes = None if caller is None else Changes(caller)
            with transaction.begin():
                yield transaction
                self._accompany(transaction)
                if transaction.changes is not None:
                    recorded = transaction.changes.record(transaction)
            if caller is not None:
                caller.recorded |= recorded
            # Before the next writer, which could read an older value from it otherwise.
            self._left.update(transaction.kept)
            while len(self._left) > _MOST_LEFT:
                del self._left[next(iter(self._left))]
            for action in transaction.ordered:
                action()
            consequences, topics = transaction.consequences, transaction.topics
        self.feed.record(transaction.subjects)
        if transaction.queue_changes:
            for observe in self.observers:
                observe(transaction.queue_changes)
        for topic in topics:
            self._notifier.notify(topic)
        for action in consequences:
            try:
                action()
            except Exception:
                # The change is committed. The dispatcher finds out what the failed action should have done.
                logger.exception("An action after a committed change failed.")

    def _accompany(self, transaction: Transaction) -> None:
        if not self.companions:
            return
        # What is flushed now is not flushed by the commit.
        transaction.flush()
        if transaction.queue_changes.activity:
            for accompany in self.companions:
                accompany(transaction)

    @contextlib.contextmanager
    def adding(self, subjects: Iterable[Subject] = ()) -> Iterator[Connection]:
        """Yield a connection for plain statements of reports, committed as by `writing`, without waking any waiter.

        Creating a session takes as long as such a statement.
        """
        with self._turn(is_report=True), self.engine.begin() as connection:
            yield connection
        self.feed.record(subjects)

    def claim(self, **facts: str) -> None:
        """Record this master as the holder of the database; after the migration.

        Args:
            facts: what helps to find this master, such as its address.

        Raises:
            UnavailableError: the database cannot be used at the moment.
        """
        with self._turn():
            self._database.claim(**facts)

    def check(self) -> None:
        """Connect to the database, and make sure that this master still is the only one.

        Raises:
            UnavailableError: the database cannot be used at the moment.
        """
        with self._turn(), self.engine.connect():
            pass

    @contextlib.contextmanager
    def _turn(self, *, is_report: bool = False) -> Iterator[None]:
        """Take turns with the other writers."""
        if not self._turns.take(lambda: self._database.is_settling, is_report=is_report):
            raise UnavailableError(_SETTLING)
        try:
            if self.is_lost:
                raise UnavailableError(_LOST)
            yield
        except HeldElsewhereError as error:
            self._lose(error)
            raise UnavailableError(_LOST) from error
        except (DBAPIError, PoolTimeoutError) as error:
            self._raise_refusal(error)
            raise
        finally:
            self._turns.leave()

    def _raise_refusal(self, error: Exception) -> None:
        refusal = self._database.refusal(error)
        if refusal is not None:
            raise refusal from error

    def _lose(self, error: HeldElsewhereError) -> None:
        self.is_lost = True
        logger.critical("%s This master ends now: only one may write.", error)
        self._on_lost()

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def schema_version(self) -> str | None:
        """Return the revision of the schema; None before the first migration."""
        try:
            with self.engine.connect() as connection:
                version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        except DBAPIError as error:
            if self._database.refusal(error) is not None:
                raise
            # There is no such table yet.
            return None
        return None if version is None else str(version)
