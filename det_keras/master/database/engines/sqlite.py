"""SQLite: a file in the data root, whose lock keeps other masters away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event

from det_keras.master.database.engines.base import Database
from det_keras.master.errors import ApiError, DiskFullError, UnavailableError

# What the library says for SQLITE_FULL and SQLITE_CANTOPEN; Python 3.10 has no code of the error.
_FULL = "database or disk is full"
_NOT_OPENED = "unable to open database file"


class SqliteDatabase(Database):
    """A file of SQLite in WAL mode, in which readers never wait for writers.

    Args:
        path: the file; created by the first connection.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        # It holds the secrets of configs. SQLite gives its other files the mode of this one. The data root may have
        # existed before, readable by others.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
        engine = create_engine(
            f"sqlite:///{path}", pool_size=10, max_overflow=50, connect_args={"timeout": 30}
        )
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        self.readers = self.writers = engine

    def refusal(self, error: Exception) -> ApiError | None:
        if _NOT_OPENED in str(error):
            return UnavailableError(f"The database {self.name} cannot be opened at the moment.")
        return DiskFullError() if _FULL in str(error) else None

    def size_bytes(self) -> int:
        """Return how much the database occupies, with what has not been moved into its file yet."""
        files = (Path(self.name), Path(f"{self.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Close the connections."""
        self.writers.dispose()


def _prepare(connection: Any, _: object) -> None:
    # The driver would open transactions at the first write and leave DDL outside of them. `_begin` opens them.
    connection.isolation_level = None
    # SQLite's own knows only the letters of ASCII; PostgreSQL knows all.
    connection.create_function("lower", 1, _lower, deterministic=True)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def _begin(connection: Any) -> None:
    # Sent through the driver: through SQLAlchemy it takes as long as storing a small row.
    connection.connection.driver_connection.execute("BEGIN")
