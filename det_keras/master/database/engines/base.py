"""What a kind of database provides to the store."""

from __future__ import annotations

import abc

from sqlalchemy import Engine

from det_keras.errors import DetError
from det_keras.master.errors import ApiError


class HeldElsewhereError(DetError):
    """Another master has the database."""


class Database(abc.ABC):
    """One database, and the connections to it.

    Attributes:
        name: the database in messages, without a password.
        readers: the engine of readers. Each of its transactions sees one state of the database.
        writers: the engine of writers. The store lets one writer use it at a time.
        is_shared: whether masters on other machines can reach it. Then `writers` connects only while no other master
            has it.
    """

    name: str
    readers: Engine
    writers: Engine
    is_shared: bool = False

    @property
    def is_settling(self) -> bool:
        """Whether a writer waits to learn if its commit took effect; other writers should not wait for it."""
        return False

    def refusal(self, error: Exception) -> ApiError | None:
        """Return how a call that failed with `error` is answered; None for an error of the program.

        It is an `UnavailableError` if the database cannot be used at the moment.
        """
        return None

    def claim(self, **facts: str) -> None:  # noqa: B027 - a file needs no record: its data root is locked
        """Record this master as the holder, with facts that help to find it; after the migration."""

    @abc.abstractmethod
    def size_bytes(self) -> int:
        """Return how much the database occupies."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connections."""
