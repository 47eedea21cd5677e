"""Copies the database of a data root to another kind of database, while no master runs.

The copy is one transaction of the destination, in which the copied rows are read back and compared before it is
committed. A copy that is interrupted therefore leaves an empty destination, and can be started again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Table, Text, func, insert, select, text
from sqlalchemy.types import Integer

from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.master import process
from det_keras.master.database.engines import SQLITE, Database, open_database
from det_keras.master.database.migrations import HEAD
from det_keras.master.database.models import Base, Json, SettingRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store

_ROWS_AT_ONCE = 1000
_DIGEST_BITS = 256


@dataclass(frozen=True)
class CopiedTable:
    """What a table contains, equal in source and destination.

    Attributes:
        name: of the table.
        rows: number of rows.
        digest: of the rows, in any order: the sum of their SHA-256.
    """

    name: str
    rows: int
    digest: str


def copy_database(home: Home, source_url: str, destination_url: str) -> list[CopiedTable]:
    """Copy all tables and compare the copy with them. The source is not changed.

    Args:
        home: the data root; no master may run for it.
        source_url: its database, ``sqlite`` or a URL of PostgreSQL.
        destination_url: an empty database.

    Raises:
        DetError: a master uses one of the databases, one cannot be used, the destination is not empty, or the source
            has another schema.
    """
    lock = process.hold(home)
    if lock is None:
        raise DetError(f"A master runs for {home.root}. Stop it first with `det deploy local cluster-down`.")
    if source_url == destination_url:
        raise DetError("The data root uses this database already. Name another one with --to.")
    with lock, _opened(source_url, home) as source:
        if source_url == SQLITE and not home.database.exists():
            raise DetError(f"There is no database in {home.root} to copy.")
        if Store(source, Notifier()).schema_version() != HEAD:
            raise DetError(
                "The database was written by another release of det_keras. Start and stop a master of this release "
                "once, which migrates it."
            )
        with _opened(destination_url, home) as destination:
            Store(destination, Notifier()).migrate()
            with source.writers.connect() as old, destination.writers.begin() as new:
                _refuse_used(new, destination)
                copied = [_copy(table, old, new) for table in _tables()]
                _compare(copied, new)
                for table in _numbered_tables():
                    _go_on_numbering(table, _last_number(table, old), new)
    return copied


@contextlib.contextmanager
def _opened(url: str, home: Home) -> Iterator[Database]:
    # Connections of writers: on a server they hold the lock that keeps masters away.
    database = open_database(url, home.database)
    try:
        yield database
    except Exception as error:
        refusal = database.refusal(error)
        if refusal is None:
            raise
        raise DetError(str(refusal)) from error
    finally:
        database.close()


def _tables() -> list[Table]:
    """Return the tables, without their rules, with JSON as the text that is stored."""
    return [
        Table(
            table.name,
            MetaData(),
            *(
                Column(
                    column.name,
                    Text() if isinstance(column.type, Json) else column.type,
                    primary_key=column.primary_key,
                )
                for column in table.columns
            ),
        )
        for table in Base.metadata.sorted_tables
    ]


def _numbered_tables() -> list[Table]:
    return [table for table in _tables() if _id(table).name == "id" and isinstance(_id(table).type, Integer)]


def _id(table: Table) -> Column[Any]:
    return next(iter(table.primary_key.columns))


def _refuse_used(connection: Connection, database: Database) -> None:
    used = [table.name for table in _tables() if connection.execute(select(table).limit(1)).first()]
    if used:
        raise DetError(
            f"The database {database.name} is not empty: it has rows in {', '.join(used)}. "
            "Copy to an empty database; of `sqlite`, move the file away first."
        )


def _rows(table: Table, connection: Connection) -> Iterator[list[tuple[Any, ...]]]:
    query = select(table).execution_options(yield_per=_ROWS_AT_ONCE)
    if table.name == SettingRow.__tablename__:
        # Which master has a database on a server is a fact about that database.
        query = query.where(table.c.name != "holder")
    for rows in connection.execute(query).partitions():
        yield [tuple(row) for row in rows]


class _Digest:
    """The sum of the digests of rows, which does not depend on their order: databases sort texts differently."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        """Add rows, as Python values."""
        self.rows += len(rows)
        for row in rows:
            self._sum += int.from_bytes(hashlib.sha256(repr(row).encode()).digest(), "big")

    def of(self, table: Table) -> CopiedTable:
        """Return the result."""
        return CopiedTable(table.name, self.rows, f"{self._sum % 2**_DIGEST_BITS:064x}")


def _copy(table: Table, old: Connection, new: Connection) -> CopiedTable:
    digest = _Digest()
    names = list(table.columns.keys())
    for rows in _rows(table, old):
        digest.add(rows)
        new.execute(insert(table), [dict(zip(names, row, strict=True)) for row in rows])
    return digest.of(table)


def _compare(copied: list[CopiedTable], new: Connection) -> None:
    for table, expected in zip(_tables(), copied, strict=True):
        digest = _Digest()
        for rows in _rows(table, new):
            digest.add(rows)
        found = digest.of(table)
        if found != expected:
            raise DetError(
                f"The copy of the table {table.name} differs: {found.rows} rows with digest {found.digest}, "
                f"expected {expected.rows} with {expected.digest}. Nothing was committed."
            )


def _last_number(table: Table, connection: Connection) -> int:
    """Return the last number that was given to a row; the row may have been deleted since."""
    last = connection.scalar(select(func.max(_id(table)))) or 0
    if connection.dialect.name == "postgresql":
        sequence = connection.scalar(_SEQUENCE, {"table": table.name})
        value, is_called = connection.execute(text(f"SELECT last_value, is_called FROM {sequence}")).one()
        return max(last, value if is_called else 0)
    known = connection.scalar(
        text("SELECT seq FROM sqlite_sequence WHERE name = :table"), {"table": table.name}
    )
    return max(last, known or 0)


def _go_on_numbering(table: Table, last: int, connection: Connection) -> None:
    """Let the next row of a table get the number after `last`."""
    if last == 0:
        return
    parameters = {"table": table.name, "last": last}
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT setval(pg_get_serial_sequence(:table, 'id'), :last)"), parameters)
    elif Base.metadata.tables[table.name].dialect_options["sqlite"]["autoincrement"]:
        connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :table"), parameters)
        connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :last)"), parameters)


_SEQUENCE = text("SELECT pg_get_serial_sequence(:table, 'id')")
