"""The messages between the training process and the writing process.

A separate module, because the writing process runs as ``__main__`` and pickles contain the module of a class.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import IO, Any

from det_keras.core.file_plan import FilePlan
from det_keras.errors import StorageError
from det_keras.storage import Storage


@dataclass(frozen=True)
class Order:
    """A checkpoint to store.

    Attributes:
        storage: stores the checkpoint.
        uuid: UUID of the checkpoint.
        plan: its files.
        offset: offset of the plan's memory in the buffer pool, in bytes.
    """

    storage: Storage
    uuid: str
    plan: FilePlan
    offset: int


@dataclass(frozen=True)
class Answer:
    """The result of an order.

    Attributes:
        error: the reason of a failure; None if the checkpoint is stored.
        errno: the error number of an OSError; None for other errors.
        storage_error: the failure, if the storage explained it.
    """

    error: str | None = None
    errno: int | None = None
    storage_error: StorageError | None = None


def send(pipe: IO[bytes], message: Any) -> None:
    """Write a message to a pipe."""
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(struct.pack("<Q", len(content)))
    pipe.write(content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Return the next message; None if the other process has closed the pipe."""
    header = pipe.read(8)
    if len(header) < 8:
        return None
    (size,) = struct.unpack("<Q", header)
    content = pipe.read(size)
    return pickle.loads(content) if len(content) == size else None
