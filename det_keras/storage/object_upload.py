"""Sends the files of a checkpoint to an object store, from memory and in parallel.

A file is cut into parts. A part is copied into one of a few buffers and sent from it in the background; the writer
waits when all buffers are being sent. A checkpoint of any size thus takes `_BUFFERS` parts of memory and no disk.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import hashlib
import queue
import tarfile
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from det_keras.errors import CheckpointError
from det_keras.scratch import Scratch
from det_keras.storage.archive import unpack
from det_keras.storage.base import CheckpointTarget
from det_keras.storage.manifest import MANIFEST_NAME, list_files, manifest_content
from det_keras.storage.requests import Requests

_BUFFERS = 4
_CHUNK_BYTES = 1 << 20

T = TypeVar("T")


class ObjectUpload(CheckpointTarget):
    """The files of one checkpoint on their way to a store.

    Args:
        requests: of the store.
        folder: what the keys of the files begin with; ends with ``/``.
    """

    def __init__(self, requests: Requests, folder: str) -> None:
        self.requests = requests
        self._folder = folder
        self._buffers: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            # Made when it is first used: most checkpoints of small models need one.
            self._buffers.put(None)
        self._files: dict[str, dict[str, object]] = {}
        self._directories: list[str] = []
        self._unfinished: dict[str, str] = {}
        self._sending: list[Future[Any]] = []
        self._failure: BaseException | None = None
        self._is_abandoned = False

    def open(self, name: str) -> ObjectStream:
        return ObjectStream(self, name, self._folder + name)

    def unpack(self, tar: tarfile.TarFile, name: str) -> None:
        # Archives hold the user's code, which is small; only a directory knows what its links point to.
        with Scratch("upload") as folder:
            unpack(tar, Path(folder))
            self.add_directory(Path(folder), f"{name.rstrip('/')}/")

    def add_directory(self, directory: Path, below: str = "") -> None:
        """Add the files of a directory.

        Args:
            directory: the files.
            below: what their names begin with in the checkpoint; empty, or ends with ``/``.
        """
        listed = list_files(directory)
        for name in listed:
            if name.endswith("/"):
                if not any(other != name and other.startswith(name) for other in listed):
                    self._directories.append(below + name)
                continue
            with (directory / name).open("rb", buffering=0) as source, self.open(below + name) as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)

    def finish(self) -> None:
        """Wait until all files are stored, and store the manifest: from then on the checkpoint exists.

        Raises:
            OSError: the store cannot be written.
        """
        self._wait()
        self._check()
        content = manifest_content(self._files, self._directories)
        key = self._folder + MANIFEST_NAME
        client = self.requests.client
        self.requests.call(key, lambda: client.put(key, content))

    def abandon(self) -> None:
        """End all requests and discard the parts of unfinished files; the complete files are left to the caller.

        Raises:
            OSError: parts could not be discarded.
        """
        # Requests on their way are waited for: a store that received one would act on it after it was discarded.
        self._is_abandoned = True
        self._wait()
        for upload_id, key in self._unfinished.items():
            self.requests.call(key, functools.partial(self.requests.client.abort, key, upload_id))

    def take_buffer(self) -> bytearray:
        """Return a free buffer of the size of a part; waits for one."""
        self._check()
        buffer = self._buffers.get()
        if buffer is None:
            buffer = bytearray(self.requests.client.part_bytes)
        return buffer

    def free_buffer(self, buffer: bytearray) -> None:
        """Make a buffer available again."""
        self._buffers.put(buffer)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start requests for a file in the background; the first that fails ends the upload."""
        future = self.requests.start(work)
        self._sending.append(future)
        future.add_done_callback(self._note)
        return future

    async def request(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Make a request for a file, unless the upload has been abandoned."""

        def make_if_wanted() -> Awaitable[T]:
            if self._is_abandoned or self._failure is not None:
                raise CheckpointError("The checkpoint is not written any more.")
            return make()

        return await self.requests.run(key, make_if_wanted)

    def begin(self, key: str) -> str:
        """Begin an upload in parts and return its id."""
        client = self.requests.client
        upload_id = self.requests.call(key, lambda: client.begin(key))
        self._unfinished[upload_id] = key
        return upload_id

    def completed(self, upload_id: str) -> None:
        """Note that an upload in parts is complete."""
        del self._unfinished[upload_id]

    def enter(self, name: str, size_bytes: int, sha256: str) -> None:
        """Enter a file into the manifest."""
        self._files[name] = {"size": size_bytes, "sha256": sha256}

    def _note(self, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None and self._failure is None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait(self) -> None:
        concurrent.futures.wait(self._sending)


class ObjectStream:
    """A new file in a store; see `FileStream`.

    Args:
        upload: the checkpoint that it belongs to.
        name: relative path in the checkpoint.
        key: its key in the store.
    """

    def __init__(self, upload: ObjectUpload, name: str, key: str) -> None:
        self._upload = upload
        self._name = name
        self._key = key
        self._hash = hashlib.sha256()
        self._size_bytes = 0
        self._buffer: bytearray | None = None
        self._filled = 0
        self._parts: list[Future[str]] = []
        self._upload_id: str | None = None

    @property
    def sha256(self) -> str:
        """The hexadecimal hash of the content."""
        return self._hash.hexdigest()

    def write(self, content: bytes | memoryview, /) -> int:
        """Append `content`, which may change afterwards, and return its size in bytes."""
        view = memoryview(content).cast("B")
        position = 0
        while position < view.nbytes:
            if self._buffer is None:
                self._buffer = self._upload.take_buffer()
            end = min(position + _CHUNK_BYTES, position + len(self._buffer) - self._filled)
            part = view[position:end]
            self._hash.update(part)
            self._buffer[self._filled : self._filled + part.nbytes] = part
            self._filled += part.nbytes
            position += part.nbytes
            if self._filled == len(self._buffer):
                self._send_part()
        self._size_bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: only whole parts are sent."""

    def close(self) -> None:
        """Send the remaining content; `ObjectUpload.finish` waits until it is stored."""
        if self._upload_id is None:
            self._send_whole()
        else:
            if self._filled:
                self._send_part()
            self._upload.start(self._complete(self._upload_id))
        self._upload.enter(self._name, self._size_bytes, self.sha256)

    def __enter__(self) -> ObjectStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def _send_part(self) -> None:
        if self._upload_id is None:
            self._upload_id = self._upload.begin(self._key)
        buffer, self._buffer = self._buffer, None
        assert buffer is not None
        content = buffer if self._filled == len(buffer) else bytes(memoryview(buffer)[: self._filled])
        self._filled = 0
        work = self._part(self._upload_id, len(self._parts) + 1, content, buffer)
        self._parts.append(self._upload.start(work))

    def _send_whole(self) -> None:
        buffer = self._buffer if self._buffer is not None else self._upload.take_buffer()
        self._buffer = None
        self._upload.start(self._whole(bytes(memoryview(buffer)[: self._filled]), buffer))

    async def _whole(self, content: bytes, buffer: bytearray) -> None:
        client = self._upload.requests.client
        try:
            await self._upload.request(self._key, lambda: client.put(self._key, content))
        finally:
            # Held until now, so that the number of buffers also limits the small files that are being sent.
            self._upload.free_buffer(buffer)

    async def _part(self, upload_id: str, number: int, content: bytes | bytearray, buffer: bytearray) -> str:
        client = self._upload.requests.client
        try:
            return await self._upload.request(
                self._key, lambda: client.send_part(self._key, upload_id, number, content)
            )
        finally:
            self._upload.free_buffer(buffer)

    async def _complete(self, upload_id: str) -> None:
        client = self._upload.requests.client
        tags = await asyncio.gather(*map(asyncio.wrap_future, self._parts))
        await self._upload.request(
            self._key, lambda: client.complete(self._key, upload_id, tags, self._size_bytes)
        )
        await self._upload.request(self._key, lambda: client.clean_up(self._key, tags))
        self._upload.completed(upload_id)
