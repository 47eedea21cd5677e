"""Checkpoints in Google Cloud Storage.

Parts are sent as objects of their own beside the final one, because that is how this store takes parts in parallel and
with a checksum for each. They are composed to the final object and deleted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from det_keras.storage.object_client import (
    ChecksumMismatchError,
    Fault,
    FaultKind,
    ObjectClient,
    StoredObject,
    UnfinishedUpload,
    broken_connection,
    check_md5,
    content_md5,
    retry_after_s,
)
from det_keras.storage.object_storage import ObjectStorage

_CHUNK_BYTES = 1 << 20
_COMPOSED_AT_ONCE = 32
_TIMEOUT_S = 60.0


class GcsStorage(ObjectStorage):
    """Stores checkpoints in a bucket of Google Cloud Storage, with the credentials that Google's own chain finds.

    Args:
        bucket: name of the bucket.
        prefix: path inside of the bucket.
    """

    extra = "gcs"
    module = "gcsfs"

    def __init__(self, bucket: str, prefix: str | None = None) -> None:
        super().__init__(prefix, bucket)

    def _client(self) -> ObjectClient:
        (bucket,) = self._options
        assert bucket is not None
        return GcsClient(bucket)


class _AnsweredError(Exception):
    """The store answered with an error."""

    def __init__(self, path: str, status: int, text: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {_message_of(text)}".strip())
        self.path = path
        self.status = status
        self.text = text
        self.headers = headers


class GcsClient(ObjectClient):
    """Requests to a bucket of Google Cloud Storage.

    Args:
        bucket: name of the bucket.
    """

    credentials_help = (
        "They come from Google's own chain: GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`, "
        "or the service account of the machine."
    )

    def __init__(self, bucket: str) -> None:
        # Imported here: it takes a second, which only users of this store should spend.
        import gcsfs

        self.location = f"gs://{bucket}"
        self._bucket = quote(bucket, safe="")
        self._fs = gcsfs.GCSFileSystem(skip_instance_cache=True, use_listings_cache=False)

    async def put(self, key: str, content: bytes | bytearray) -> None:
        md5 = await content_md5(content)
        answer = await self._json(
            "POST",
            f"upload/storage/v1/b/{self._bucket}/o",
            params={"uploadType": "media", "name": key},
            headers={"Content-Type": "application/octet-stream"},
            data=content,
        )
        check_md5(key, md5, answer.get("md5Hash"))
        if int(answer.get("size", len(content))) != len(content):
            raise ChecksumMismatchError(
                f"the store has {answer['size']} of the {len(content)} bytes of {key}"
            )

    async def begin(self, key: str) -> str:
        # Nothing to announce: a part is an object.
        return uuid4().hex

    async def send_part(self, key: str, upload_id: str, number: int, content: bytes | bytearray) -> str:
        name = f"{key}.part-{upload_id}-{number:05d}"
        await self.put(name, content)
        return name

    async def complete(self, key: str, upload_id: str, tags: Sequence[str], size_bytes: int) -> None:
        answer: Mapping[str, Any] = {}
        # At most 32 objects can be composed at once: the next ones are appended to the result.
        for first in range(0, len(tags), _COMPOSED_AT_ONCE - 1):
            sources = [*([key] if first else []), *tags[first : first + _COMPOSED_AT_ONCE - 1]]
            answer = await self._json(
                "POST",
                f"storage/v1/b/{self._bucket}/o/{quote(key, safe='')}/compose",
                json={
                    "sourceObjects": [{"name": name} for name in sources],
                    "destination": {"contentType": "application/octet-stream"},
                },
            )
        if int(answer["size"]) != size_bytes:
            raise ChecksumMismatchError(f"{key} has {answer['size']} bytes instead of {size_bytes}")

    async def clean_up(self, key: str, tags: Sequence[str]) -> None:
        await self.delete(tags)

    async def abort(self, key: str, upload_id: str) -> None:
        await self.delete(list(await self.list(f"{key}.part-{upload_id}-")))

    async def unfinished(self, prefix: str) -> list[UnfinishedUpload]:
        # Their parts are listed as objects.
        return []

    async def list(self, prefix: str) -> Mapping[str, StoredObject]:
        found = {}
        token = None
        while True:
            params = {"prefix": prefix, "fields": "items(name,size,updated,generation),nextPageToken"}
            if token:
                params["pageToken"] = token
            page = await self._json("GET", f"storage/v1/b/{self._bucket}/o", params=params)
            for entry in page.get("items", ()):
                found[entry["name"]] = StoredObject(
                    int(entry.get("size", 0)), _seconds(entry["updated"]), str(entry.get("generation", ""))
                )
            token = page.get("nextPageToken")
            if not token:
                return found

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        headers = {"Range": f"bytes={start}-{end - 1}"}
        async with self._opened("GET", self._media(key), params={"alt": "media"}, headers=headers) as answer:
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                yield chunk

    async def get(self, key: str) -> bytes:
        async with self._opened("GET", self._media(key), params={"alt": "media"}) as answer:
            content: bytes = await answer.read()
            return content

    async def delete_one(self, key: str) -> None:
        path = f"storage/v1/b/{self._bucket}/o/{quote(key, safe='')}"
        try:
            async with self._opened("DELETE", path):
                pass
        except _AnsweredError as error:
            if error.status != 404:
                raise

    def fault(self, error: BaseException) -> Fault | None:
        from google.auth import exceptions

        if isinstance(error, _AnsweredError):
            return _answered(error)
        if isinstance(error, exceptions.DefaultCredentialsError):
            return Fault(FaultKind.NO_CREDENTIALS, "no credentials")
        if isinstance(error, exceptions.TransportError):
            return Fault(FaultKind.BROKEN, str(error))
        if isinstance(error, exceptions.GoogleAuthError):
            return Fault(FaultKind.EXPIRED, str(error))
        return broken_connection(error)

    def _media(self, key: str) -> str:
        return f"download/storage/v1/b/{self._bucket}/o/{quote(key, safe='')}"

    async def _json(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        async with self._opened(method, path, **arguments) as answer:
            content: dict[str, Any] = json.loads(await answer.read() or b"{}")
            return content

    @asynccontextmanager
    async def _opened(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **arguments: Any
    ) -> AsyncIterator[Any]:
        """Yield the answer to a request; gcsfs's own calls hide Retry-After and read whole bodies."""
        import aiohttp
        from yarl import URL

        session = await self._fs._set_session()
        base = self._fs.base.removesuffix("/storage/v1/")
        # May ask for a new token, with a request that blocks.
        signed = await asyncio.to_thread(self._fs._get_headers, dict(headers or {}))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=_TIMEOUT_S)
        url = URL(f"{base}/{path}", encoded=True).update_query(arguments.pop("params", {}))
        async with session.request(method, url, headers=signed, timeout=timeout, **arguments) as answer:
            if answer.status >= 400:
                text = await answer.text(errors="replace")
                raise _AnsweredError(path, answer.status, text, dict(answer.headers))
            yield answer


def _seconds(text: str) -> float:
    # Python 3.10 reads neither `Z` nor nanoseconds.
    shortened = re.sub(r"(\.\d{6})\d+", r"\1", text.replace("Z", "+00:00"))
    return datetime.fromisoformat(
        re.sub(r"\.(\d{1,5})(?=[+-])", lambda m: f".{m[1]:0<6}", shortened)
    ).timestamp()


def _message_of(text: str) -> str:
    try:
        error = json.loads(text)["error"]
        return str(error.get("message", "") if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return text[:200]


def _answered(error: _AnsweredError) -> Fault:
    kinds = {
        401: FaultKind.EXPIRED,
        403: FaultKind.DENIED,
        404: FaultKind.MISSING,
        408: FaultKind.BUSY,
        413: FaultKind.FULL,
        429: FaultKind.BUSY,
        507: FaultKind.FULL,
    }
    kind = kinds.get(error.status, FaultKind.BUSY if error.status >= 500 else FaultKind.REFUSED)
    if error.status == 404 and (error.path.endswith("/o") or "bucket does not exist" in error.text):
        kind = FaultKind.NO_BUCKET
    if error.status == 401 and "anonymous" in error.text.lower():
        kind = FaultKind.NO_CREDENTIALS
    if error.status == 403 and ("quota" in error.text.lower() or "rateLimit" in error.text):
        kind = FaultKind.BUSY if "rate" in error.text.lower() else FaultKind.FULL
    return Fault(kind, str(error), retry_after_s(error.headers))
