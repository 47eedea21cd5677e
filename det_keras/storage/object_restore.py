"""Fetches the files of a checkpoint from an object store, in parallel ranges.

A range whose connection breaks continues at the byte where it broke.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from det_keras.errors import CheckpointError
from det_keras.storage.names import is_relative
from det_keras.storage.object_client import ChecksumMismatchError
from det_keras.storage.requests import Requests

_RANGE_BYTES = 32 << 20
_PARALLEL = 8


def fetch_files(requests: Requests, files: Mapping[str, tuple[str, int]], directory: Path) -> None:
    """Write objects to files of a directory; the content is not verified.

    Args:
        requests: of the store.
        files: relative path -> key and size in bytes.
        directory: an existing directory.

    Raises:
        MissingObjectError: an object does not exist.
        CheckpointError: a file would lie outside of the directory.
        StorageError: the store cannot be read.
        OSError: the directory cannot be written.
    """
    requests.start(_fetch_all(requests, files, directory)).result()


async def _fetch_all(requests: Requests, files: Mapping[str, tuple[str, int]], directory: Path) -> None:
    limit = asyncio.Semaphore(_PARALLEL)
    descriptors = []
    try:
        ranges = []
        for name, (key, size_bytes) in files.items():
            # Names may come from a listing of the bucket, into which others can write.
            if not is_relative(name):
                raise CheckpointError(
                    f"The object {key!r} is not inside of its directory; it is not fetched."
                )
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            descriptors.append(descriptor)
            for start in range(0, size_bytes, _RANGE_BYTES):
                end = min(start + _RANGE_BYTES, size_bytes)
                ranges.append(_fetch_range(requests, limit, key, descriptor, start, end))
        await _all_or_none(ranges)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def _all_or_none(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        # The files are closed next: no task may write to a descriptor that another file has by then.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _fetch_range(
    requests: Requests, limit: asyncio.Semaphore, key: str, descriptor: int, start: int, end: int
) -> None:
    position = start

    async def fetch() -> None:
        nonlocal position
        async for chunk in requests.client.read(key, position, end):
            os.pwrite(descriptor, chunk, position)
            position += len(chunk)
        if position != end:
            raise ChecksumMismatchError(
                f"the connection ended after {position - start} of {end - start} bytes"
            )

    async with limit:
        await requests.run(key, fetch, progress=lambda: position)
