"""Deletes what people may not need any more, when they ask for it, and says before what that is."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import func, select

from det_keras.home import Home
from det_keras.launch.environments.cache import EnvironmentCache
from det_keras.master.accounts.audit import older_than
from det_keras.master.database.models import AuditRow, LogRow, TaskRow
from det_keras.master.database.store import Store
from det_keras.master.services.experiment_deletion import delete_in_parts
from det_keras.master.usage import size_of
from det_keras.protocol.values import now

# What an entry occupies without its detail, about.
_ENTRY_BYTES = 200


@dataclass(frozen=True)
class Superfluous:
    """What can be deleted of one kind.

    Attributes:
        kind: what it is.
        count: how many.
        size_bytes: how much they occupy.
    """

    kind: str
    count: int
    size_bytes: int


class Pruning:
    """Finds and deletes; what is in use is neither found nor deleted.

    Args:
        store: the database.
        home: the data root.
    """

    def __init__(self, store: Store, home: Home) -> None:
        self._store = store
        self._home = home

    def logs(self, days: int, *, is_dry: bool) -> Superfluous:
        """Delete the log lines of trials and jobs that ended so many days ago.

        Args:
            days: 0 for all that have ended.
            is_dry: only say what would be deleted.

        Raises:
            UnavailableError: the database cannot be used at the moment.
        """
        ended = select(TaskRow.id).where(TaskRow.end_time <= now() - timedelta(days=days))
        condition = LogRow.task_id.in_(ended)
        with self._store.reading() as session:
            query = select(func.count(), func.sum(func.length(LogRow.text))).where(condition)
            count, length = session.execute(query).one()
        if not is_dry:
            delete_in_parts(self._store, LogRow, condition)
        return Superfluous("log lines", count, length or 0)

    def runs(self, days: int, *, is_dry: bool) -> Superfluous:
        """Delete the directories of runs without a master that did not change for so many days.

        Args:
            days: 0 for all that no process uses.
            is_dry: only say what would be deleted.
        """
        count = size = 0
        for folder in sorted(self._home.runs.glob("*/")):
            with _unused(folder) as is_unused:
                if is_unused and _changed_at(folder) <= time.time() - days * 86_400:
                    count, size = count + 1, size + size_of(folder)
                    if not is_dry:
                        shutil.rmtree(folder, ignore_errors=True)
        return Superfluous("runs without a master", count, size)

    def changes(self, days: int, *, is_dry: bool) -> Superfluous:
        """Delete the entries of the record of changes that are so many days old.

        Args:
            days: 0 for all.
            is_dry: only say what would be deleted.

        Raises:
            UnavailableError: the database cannot be used at the moment.
        """
        condition = older_than(days)
        with self._store.reading() as session:
            size = func.sum(func.length(AuditRow.detail) + _ENTRY_BYTES)
            count, length = session.execute(select(func.count(AuditRow.id), size).where(condition)).one()
        if not is_dry:
            delete_in_parts(self._store, AuditRow, condition)
        return Superfluous("entries of the record of changes", count, length or 0)

    def environments(self, *, is_dry: bool) -> Superfluous:
        """Delete the Python environments that no task uses at the moment.

        Args:
            is_dry: only say what would be deleted.
        """
        cache = EnvironmentCache(self._home.environments)
        unused = cache.unused()
        size = sum(size_of(cache.folder / key) for key in unused)
        if not is_dry:
            cache.remove_unused(kept_s=0.0)
        return Superfluous("environments", len(unused), size)


@contextlib.contextmanager
def _unused(run: Path) -> Iterator[bool]:
    """Keep a run from being used meanwhile; yield whether no process uses it now."""
    with contextlib.ExitStack() as stack:
        try:
            # The lock of `det_keras.core.backend.local.RunDirectory`.
            lock = stack.enter_context((run / "lock").open("r+"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _changed_at(run: Path) -> float:
    """Return when a run was last written: each report and each checkpoint changes an entry of its directory."""
    entries = [run, *(entry for entry in run.iterdir() if entry.name != "lock")]
    return max((entry.stat().st_mtime for entry in entries), default=0.0)
