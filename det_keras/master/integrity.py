"""Checks all that a data root has: each row of the database, the code of experiments, and the files of checkpoints.

The master may run meanwhile: what was deleted during the check does not count as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from det_keras import storage
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.master.checkpoints.records import COMPLETED, storage_section
from det_keras.master.database.damage import first_damage
from det_keras.master.database.engines import SQLITE, Database, open_database
from det_keras.master.database.migrations import HEAD
from det_keras.master.database.models import Base, CheckpointRow

_ROWS_AT_ONCE = 1000
_MOST_NAMES = 3
# An extension that comes with PostgreSQL; only some roles may install it.
_HAS_AMCHECK = "SELECT count(*) FROM pg_extension WHERE extname = 'amcheck'"
_TREES = """
    SELECT c.relname, c.oid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
    WHERE a.amname = 'btree' AND i.indisvalid AND c.relnamespace = current_schema()::regnamespace
"""


@dataclass
class Findings:
    """What a check has read, and what is wrong.

    Attributes:
        rows: number of rows of the database.
        code_archives: number of archives of the code of experiments and jobs.
        checkpoints: number of checkpoints that should be complete.
        problems: a sentence for each.
    """

    rows: int = 0
    code_archives: int = 0
    checkpoints: int = 0
    problems: list[str] = field(default_factory=list)


def check(home: Home, database_url: str) -> Findings:
    """Check a data root.

    Args:
        home: the data root; its master may run.
        database_url: its database.

    Raises:
        DetError: there is no database, it cannot be used, or another release wrote it.
    """
    if database_url == SQLITE and not home.database.exists():
        raise DetError(f"There is no database in {home.root} to check.")
    findings = Findings()
    if database_url == SQLITE:
        findings.problems += _sqlite_problems(home.database)
        if findings.problems:
            # Rows read from it could be any.
            return findings
    database = open_database(database_url, home.database)
    try:
        if _schema(database) != HEAD:
            raise DetError(
                "The database was written by another release of det_keras. Start a master of this release once, which "
                "migrates it."
            )
        _check_rows(database, findings)
        if not findings.problems:
            _check_code(database, home.root / "contexts", findings)
            _check_checkpoints(database, findings)
    except SQLAlchemyError as error:
        raise DetError(f"The database {database.name} cannot be read: {error}.") from error
    finally:
        database.close()
    return findings


def _sqlite_problems(path: Path) -> Iterator[str]:
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            damage = first_damage(connection, "integrity_check")
            if damage is not None:
                yield f"The database {path} is damaged: {damage}."
                return
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
                yield f"Row {row} of the table {table} refers to a row of {parent} that does not exist."
    except sqlite3.DatabaseError as error:
        yield f"The database {path} cannot be read: {error}."


def _schema(database: Database) -> str | None:
    # By a connection of readers: the master that runs has that of the writers.
    with database.readers.connect() as connection:
        found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
        return found


def _check_rows(database: Database, findings: Findings) -> None:
    """Read each row, whose values are checked on the way."""
    with database.readers.connect() as connection:
        for table in Base.metadata.sorted_tables:
            query = select(table).execution_options(yield_per=_ROWS_AT_ONCE)
            try:
                for rows in connection.execute(query).partitions():
                    findings.rows += len(rows)
            except (SQLAlchemyError, ValueError) as error:
                findings.problems.append(f"A row of the table {table.name} cannot be read: {error}.")
                connection.rollback()
        if connection.dialect.name == "postgresql":
            findings.problems += _index_problems(connection)


def _index_problems(connection: Connection) -> Iterator[str]:
    if not connection.scalar(text(_HAS_AMCHECK)):
        return
    for name, number in connection.execute(text(_TREES)).all():
        try:
            connection.execute(text("SELECT bt_index_check(:number, true)"), {"number": number})
        except SQLAlchemyError as error:
            yield f"The index {name} is damaged: {error}."
            connection.rollback()


def _code_in_use(database: Database) -> dict[str, str]:
    """Return the digests of the archives in use, and the table that names each."""
    with database.readers.connect() as connection:
        return {
            digest: table.name
            for table in Base.metadata.sorted_tables
            if "context" in table.columns
            for digest in connection.scalars(select(table.c.context).distinct())
            if digest is not None
        }


def _check_code(database: Database, folder: Path, findings: Findings) -> None:
    missing = {}
    for digest, table in sorted(_code_in_use(database).items()):
        findings.code_archives += 1
        path = folder / f"{digest}.tar.gz"
        try:
            if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                findings.problems.append(f"The code in {path} was changed, or is damaged.")
        except OSError as error:
            missing[digest] = (
                f"The code in {path}, which a row of {table} uses, cannot be read: {error.strerror}."
            )
    still_used = _code_in_use(database) if missing else {}
    findings.problems += [problem for digest, problem in missing.items() if digest in still_used]


@dataclass(frozen=True)
class _Complete:
    """A checkpoint that should be complete: its storage, and the names of its files."""

    section: Mapping[str, Any]
    names: frozenset[str]


def _complete_checkpoints(database: Database) -> dict[str, _Complete]:
    """Return the checkpoints that should be complete, by their UUIDs."""
    query = select(CheckpointRow).where(CheckpointRow.state == COMPLETED)
    with Session(database.readers) as session:
        return {
            row.uuid: _Complete(
                storage_section(session, row),
                frozenset(name for name in row.resources if not name.endswith("/")),
            )
            for row in session.scalars(query)
        }


def _check_checkpoints(database: Database, findings: Findings) -> None:
    damaged = {}
    for uuid, checkpoint in _complete_checkpoints(database).items():
        findings.checkpoints += 1
        try:
            place = storage.from_config(checkpoint.section)
            lacking = checkpoint.names - set(place.list_files(uuid))
        except (DetError, OSError) as error:
            damaged[uuid] = f"The files of checkpoint {uuid} cannot be listed: {error}."
            continue
        if lacking:
            some = ", ".join(sorted(lacking)[:_MOST_NAMES]) + (", ..." if len(lacking) > _MOST_NAMES else "")
            damaged[uuid] = f"Checkpoint {uuid} lacks {len(lacking)} files in {place.location(uuid)}: {some}."
    still_complete = _complete_checkpoints(database) if damaged else {}
    findings.problems += [problem for uuid, problem in damaged.items() if uuid in still_complete]
