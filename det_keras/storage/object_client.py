"""The contract of an object store: the requests that its kind has, and the meaning of its errors.

One module per kind implements it with fsspec's file system of that kind, which does the authentication and holds the
connections. All methods are coroutines and run on the loop of that file system. None of them repeats a request:
`det_keras.storage.requests` does, in the same way for all kinds.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import enum
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DELETED_IN_PARALLEL = 16


class FaultKind(enum.Enum):
    """What a failed request means, whatever the store."""

    BUSY = "busy"
    BROKEN = "broken"
    MISSING = "missing"
    NO_BUCKET = "no bucket"
    NO_CREDENTIALS = "no credentials"
    DENIED = "denied"
    EXPIRED = "expired"
    FULL = "full"
    REFUSED = "refused"


@dataclass(frozen=True)
class Fault:
    """A failed request.

    Attributes:
        kind: what it means.
        reason: the store's words, for messages.
        retry_after_s: how long the store asks to wait, in seconds; None if it does not say.
    """

    kind: FaultKind
    reason: str
    retry_after_s: float | None = None

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed in a moment."""
        return self.kind in (FaultKind.BUSY, FaultKind.BROKEN)


class ChecksumMismatchError(Exception):
    """The store computed another checksum than was sent: the content changed on its way."""


@dataclass(frozen=True)
class StoredObject:
    """An object of a store.

    Attributes:
        size_bytes: its size.
        modified: time of its last change, in seconds since 1970; None if the store does not tell.
        version: changes with the content.
    """

    size_bytes: int
    modified: float | None
    version: str = ""


@dataclass(frozen=True)
class UnfinishedUpload:
    """An upload in parts that was neither completed nor aborted.

    Attributes:
        key: the object that it would become.
        upload_id: the store's name of it.
        started: when it began, in seconds since 1970; None if the store does not tell.
    """

    key: str
    upload_id: str
    started: float | None


class ObjectClient(abc.ABC):
    """Requests to one bucket of an object store.

    Attributes:
        location: the bucket as an address, such as ``s3://bucket``.
        bucket_field: the field of `checkpoint_storage` that names the bucket.
        credentials_help: where the credentials come from, for messages.
        part_bytes: size of the parts of an upload.
    """

    location: str
    bucket_field: str = "bucket"
    credentials_help: str
    part_bytes: int = 32 << 20

    # fsspec's file system of the kind; each kind sets it.
    _fs: Any

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop of the file system."""
        loop: asyncio.AbstractEventLoop = self._fs.loop
        return loop

    @abc.abstractmethod
    async def put(self, key: str, content: bytes) -> None:
        """Store a small object with one request, verified by the store's checksum; replaces an existing object."""

    @abc.abstractmethod
    async def begin(self, key: str) -> str:
        """Begin an upload in parts and return its id."""

    @abc.abstractmethod
    async def send_part(self, key: str, upload_id: str, number: int, content: bytes | bytearray) -> str:
        """Send a part, verified by the store's checksum, and return the tag that `complete` needs.

        Args:
            key: the object.
            upload_id: the result of `begin`.
            number: place of the part, from 1.
            content: `part_bytes` bytes, or fewer in the last part.
        """

    @abc.abstractmethod
    async def complete(self, key: str, upload_id: str, tags: Sequence[str], size_bytes: int) -> None:
        """Make an object of all parts, in order; fails if one is missing. A repeated call has no effect."""

    async def clean_up(self, key: str, tags: Sequence[str]) -> None:
        """Delete what `complete` no longer needs; a repeated call has no effect."""
        return

    @abc.abstractmethod
    async def abort(self, key: str, upload_id: str) -> None:
        """Discard the parts of an upload."""

    @abc.abstractmethod
    async def unfinished(self, prefix: str) -> list[UnfinishedUpload]:
        """Return the unfinished uploads of objects whose keys begin with `prefix`."""

    @abc.abstractmethod
    async def list(self, prefix: str) -> Mapping[str, StoredObject]:
        """Return the objects whose keys begin with `prefix`, by key."""

    @abc.abstractmethod
    def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes of an object from `start` up to `end`."""

    @abc.abstractmethod
    async def get(self, key: str) -> bytes:
        """Return the content of a small object."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing object is not an error.

        One request for each object, several at a time, unless the store has a request for many.
        """
        limit = asyncio.Semaphore(_DELETED_IN_PARALLEL)

        async def delete_one(key: str) -> None:
            async with limit:
                await self.delete_one(key)

        await asyncio.gather(*map(delete_one, keys))

    @abc.abstractmethod
    async def delete_one(self, key: str) -> None:
        """Delete an object; a missing object is not an error."""

    @abc.abstractmethod
    def fault(self, error: BaseException) -> Fault | None:
        """Return what an error of a request means; None for an error that no store causes."""


async def content_md5(content: bytes | bytearray) -> bytes:
    """Return the MD5 of a content, computed beside the loop.

    MD5 protects against accidents on the way, and every store verifies it. The manifest has the SHA-256.
    """
    digest = await asyncio.to_thread(hashlib.md5, content, usedforsecurity=False)
    return digest.digest()


def check_md5(key: str, sent: bytes, received: str | None) -> None:
    """Compare the base64 MD5 that a store computed with what was sent; None is not compared.

    Raises:
        ChecksumMismatchError: they differ.
    """
    if received is not None and base64.b64decode(received) != sent:
        raise ChecksumMismatchError(f"the store received other bytes than were sent for {key}")


def retry_after_s(headers: Mapping[str, str] | None) -> float | None:
    """Return the seconds of a Retry-After header; None without it, or if it is a date."""
    for name, value in (headers or {}).items():
        if name.lower() == "retry-after":
            try:
                return max(0.0, float(value))
            except ValueError:
                return None
    return None


def broken_connection(error: BaseException) -> Fault | None:
    """Return the fault of an error of the network, or of content that changed on its way; None for others."""
    # Comes with every kind of file system.
    import aiohttp

    network = (
        ChecksumMismatchError,
        ConnectionError,
        TimeoutError,
        asyncio.TimeoutError,
        aiohttp.ClientError,
    )
    if not isinstance(error, (*network, asyncio.IncompleteReadError)):
        return None
    return Fault(FaultKind.BROKEN, str(error) or type(error).__name__)
