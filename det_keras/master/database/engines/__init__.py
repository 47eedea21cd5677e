"""The kinds of databases that a master can use: SQLite in its data root, or PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from det_keras.errors import DetError
from det_keras.master.database.engines.base import Database, HeldElsewhereError
from det_keras.master.database.engines.sqlite import SqliteDatabase

__all__ = ["SQLITE", "Database", "HeldElsewhereError", "is_postgresql", "open_database"]

#: The name of the database in the data root.
SQLITE = "sqlite"

_POSTGRESQL = ("postgresql://", "postgres://")


def is_postgresql(url: str) -> bool:
    """Return whether a URL is that of PostgreSQL."""
    return url.startswith(_POSTGRESQL)


def open_database(url: str, path: Path) -> Database:
    """Return a database; nothing is read or created yet.

    Args:
        url: ``sqlite``, or ``postgresql://...``.
        path: the file of SQLite.

    Raises:
        DetError: the URL is of another kind or malformed, or the driver is not installed.
    """
    if url == SQLITE:
        return SqliteDatabase(path)
    if not is_postgresql(url):
        # The URL is not shown: it may contain a password.
        raise DetError(
            "The database must be `sqlite` or a URL such as postgresql://user@host/name. "
            "Correct --db or DET_KERAS_DB."
        )
    # Imported here: the driver is optional, and loading it takes longer than opening SQLite.
    from det_keras.master.database.engines.postgresql import PostgresqlDatabase

    return PostgresqlDatabase(url)
