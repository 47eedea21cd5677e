"""Rows in memory that follow the database: before a question those that changed since the last one are read again."""

from __future__ import annotations

import abc
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from det_keras.master.database.change_feed import Subject
from det_keras.master.database.store import Store

# Databases limit the number of values in a statement.
_AT_ONCE = 500
RowT = TypeVar("RowT")


class FollowedRows(abc.ABC, Generic[RowT]):
    """Rows by their numbers, for any thread.

    Args:
        store: the database; its feed of changes names what a transaction changed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._position = -1
        self._rows: dict[int, RowT] = {}

    def read(self) -> list[RowT]:
        """Return the rows as they are now, oldest first.

        Raises:
            UnavailableError: the database cannot be used at the moment.
        """
        with self._lock:
            position, changed = self._store.feed.since(max(self._position, 0))
            is_first = self._position < 0
            if is_first or changed:
                with self._store.reading() as session:
                    self._follow(session, None if is_first else changed)
                self._position = position
            return list(self._rows.values())

    @abc.abstractmethod
    def _follow(self, session: Session, changed: frozenset[Subject] | None) -> None:
        """Read again what changed; everything, if that is None or has `EVERYTHING`."""


def in_parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield values in parts that a statement takes."""
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]
