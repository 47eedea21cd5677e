"""Finds a damaged file of SQLite before a master uses it: it would answer wrongly, or fail in the middle of a trial."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from pathlib import Path

from det_keras.errors import DetError

logger = logging.getLogger(__name__)

_HEADER = b"SQLite format 3\0"
# Half of the time that a start may take. A disk reads some 10 GB meanwhile.
_MOST_S = 30.0
_STEPS_BETWEEN_LOOKS = 100_000
_INTERRUPTED = "interrupted"


def refuse_damaged(path: Path, *, was_used: bool, is_after_crash: bool, last_backup: Path | None) -> None:
    """Refuse the database of a data root if it is damaged.

    Args:
        path: the file; it may not exist yet.
        was_used: whether a master has served the data root before.
        is_after_crash: whether the last master did not end in good order; then all pages are checked, as far as that
            takes no longer than half a minute.
        last_backup: of the data root; None if there is none.

    Raises:
        DetError: it is damaged; the message names the file and the backup.
    """
    found = _damage(path, was_used=was_used, is_after_crash=is_after_crash)
    if found is None:
        return
    backup = "the last backup" if last_backup is None else f"the last backup, {last_backup},"
    source = "FILE" if last_backup is None else str(last_backup)
    raise DetError(
        f"The database {path} is damaged ({found}): move {path.parent} away and restore {backup} in its place with "
        f"`det master restore {source}`."
    )


def first_damage(connection: sqlite3.Connection, pragma: str = "quick_check(1)") -> str | None:
    """Return what a check of SQLite finds first, None for no damage.

    Args:
        connection: with the database.
        pragma: the check: ``quick_check``, or ``integrity_check``, which compares indexes with their tables too.
    """
    try:
        (found,) = connection.execute(f"PRAGMA {pragma}").fetchone()
    except sqlite3.OperationalError:
        # It is locked, or the check was interrupted.
        raise
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else " ".join(str(found).split())


def _damage(path: Path, *, was_used: bool, is_after_crash: bool) -> str | None:
    try:
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except FileNotFoundError:
        return None
    if not header:
        # A new one that no master has written to yet is empty too.
        return "it is empty" if was_used else None
    if header != _HEADER:
        return "it does not begin as a database of SQLite does"
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return _checked_in_time(connection, path) if is_after_crash else None
    except sqlite3.OperationalError as error:
        # It is locked, or the disk is full: that is told where the database is used.
        logger.warning("The database %s could not be checked: %s.", path, error)
        return None
    except sqlite3.DatabaseError as error:
        return str(error)


def _checked_in_time(connection: sqlite3.Connection, path: Path) -> str | None:
    deadline = time.monotonic() + _MOST_S
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
    try:
        return first_damage(connection)
    except sqlite3.OperationalError as error:
        if str(error) != _INTERRUPTED:
            raise
        logger.warning(
            "The database %s is too large to be checked at a start. `det master check` checks all.", path
        )
        return None
