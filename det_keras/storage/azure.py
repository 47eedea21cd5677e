"""Checkpoints in Azure Blob Storage, as block blobs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from det_keras.storage.object_client import (
    ChecksumMismatchError,
    Fault,
    FaultKind,
    ObjectClient,
    StoredObject,
    UnfinishedUpload,
    broken_connection,
    retry_after_s,
)
from det_keras.storage.object_storage import ObjectStorage

_PIECE_BYTES = 4 << 20
_KINDS = {
    "ContainerNotFound": FaultKind.NO_BUCKET,
    "BlobNotFound": FaultKind.MISSING,
    "AuthenticationFailed": FaultKind.DENIED,
    "AuthorizationFailure": FaultKind.DENIED,
    "AuthorizationPermissionMismatch": FaultKind.DENIED,
    "NoAuthenticationInformation": FaultKind.NO_CREDENTIALS,
    "ExpiredAuthenticationToken": FaultKind.EXPIRED,
    "InvalidAuthenticationInfo": FaultKind.EXPIRED,
    "Md5Mismatch": FaultKind.BROKEN,
    "Crc64Mismatch": FaultKind.BROKEN,
    "ServerBusy": FaultKind.BUSY,
    "OperationTimedOut": FaultKind.BUSY,
    "InternalError": FaultKind.BUSY,
    "ContainerBeingDeleted": FaultKind.NO_BUCKET,
    "InsufficientAccountResources": FaultKind.FULL,
}


class AzureStorage(ObjectStorage):
    """Stores checkpoints in a container of Azure Blob Storage.

    Args:
        container: name of the container.
        connection_string: connection string of the account; excludes `account_url`.
        account_url: address of the account.
        credential: account key or shared access signature for `account_url`; None for the credentials that Azure's own
            chain finds.
    """

    extra = "azure"
    module = "adlfs"

    def __init__(
        self,
        container: str,
        connection_string: str | None = None,
        account_url: str | None = None,
        credential: str | None = None,
    ) -> None:
        super().__init__(None, container, connection_string, account_url, credential)

    def _client(self) -> ObjectClient:
        container, connection_string, account_url, credential = self._options
        assert container is not None
        return AzureClient(container, connection_string, account_url, credential)


class AzureClient(ObjectClient):
    """Requests to a container; see `AzureStorage` for the arguments."""

    bucket_field = "container"
    credentials_help = (
        "They come from `connection_string` or `credential` of `checkpoint_storage`, or else from Azure's own chain: "
        "variables such as AZURE_CLIENT_ID, `az login`, or the managed identity of the machine."
    )

    def __init__(
        self, container: str, connection_string: str | None, account_url: str | None, credential: str | None
    ) -> None:
        # Imported here: it takes a second, which only users of this store should spend.
        import adlfs

        self.location = f"az://{container}"
        self._container = container
        self._fs = adlfs.AzureBlobFileSystem(
            **_connection(connection_string, account_url, credential),
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    async def put(self, key: str, content: bytes) -> None:
        await self._blob(key).upload_blob(content, overwrite=True, validate_content=True, retry_total=0)

    async def begin(self, key: str) -> str:
        # Nothing to announce: the name of a block tells the upload.
        return uuid4().hex

    async def send_part(self, key: str, upload_id: str, number: int, content: bytes | bytearray) -> str:
        block = f"{upload_id}-{number:05d}"
        # The client library sends an MD5, which the store verifies.
        await self._blob(key).stage_block(
            block, bytes(content), length=len(content), validate_content=True, retry_total=0
        )
        return block

    async def complete(self, key: str, upload_id: str, tags: Sequence[str], size_bytes: int) -> None:
        from azure.storage.blob import BlobBlock

        blob = self._blob(key)
        await blob.commit_block_list([BlobBlock(tag) for tag in tags], retry_total=0)
        found = (await blob.get_blob_properties(retry_total=0)).size
        if found != size_bytes:
            raise ChecksumMismatchError(f"{key} has {found} bytes instead of {size_bytes}")

    async def abort(self, key: str, upload_id: str) -> None:
        # Blocks cannot be deleted; a blob without blocks discards them.
        await self.put(key, b"")
        await self.delete([key])

    async def unfinished(self, prefix: str) -> list[UnfinishedUpload]:
        listed = self._items(prefix, include=["uncommittedblobs"])
        candidates = [blob.name async for blob in listed if not blob.size]
        if not candidates:
            return []
        committed = await self.list(prefix)
        return [UnfinishedUpload(name, "", None) for name in candidates if name not in committed]

    async def list(self, prefix: str) -> Mapping[str, StoredObject]:
        return {
            blob.name: StoredObject(blob.size, blob.last_modified.timestamp(), blob.etag or "")
            async for blob in self._items(prefix)
        }

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        # The client library reads a whole answer before it returns any of it: pieces limit the memory, and what is
        # fetched again after a broken connection.
        for first in range(start, end, _PIECE_BYTES):
            size_bytes = min(_PIECE_BYTES, end - first)
            reader = await self._blob(key).download_blob(first, size_bytes, retry_total=0)
            yield await reader.readall()

    async def get(self, key: str) -> bytes:
        reader = await self._blob(key).download_blob(retry_total=0)
        content: bytes = await reader.readall()
        return content

    async def delete_one(self, key: str) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            await self._blob(key).delete_blob(retry_total=0)
        except ResourceNotFoundError as error:
            if _answered(error).kind is not FaultKind.MISSING:
                raise

    def fault(self, error: BaseException) -> Fault | None:
        from azure.core import exceptions

        if isinstance(error, exceptions.ClientAuthenticationError) and error.response is None:
            return Fault(FaultKind.NO_CREDENTIALS, str(error).splitlines()[0])
        if isinstance(error, exceptions.HttpResponseError) and error.response is not None:
            return _answered(error)
        if isinstance(error, exceptions.AzureError):
            return Fault(FaultKind.BROKEN, str(error).splitlines()[0])
        return broken_connection(error)

    def _blob(self, key: str) -> Any:
        return self._fs.service_client.get_blob_client(self._container, key)

    def _items(self, prefix: str, **options: Any) -> Any:
        container = self._fs.service_client.get_container_client(self._container)
        return container.list_blobs(name_starts_with=prefix, retry_total=0, **options)


def _connection(
    connection_string: str | None, account_url: str | None, credential: str | None
) -> dict[str, Any]:
    """Return the arguments of the file system for a way to authenticate."""
    if connection_string is not None:
        return {"connection_string": connection_string}
    if account_url is None:
        # The section that a client is shown has no secrets: the file system reads AZURE_STORAGE_* variables.
        return {}
    address = urlsplit(account_url)
    is_path_style = bool(address.path.strip("/"))
    # An emulator has the account in the path, Azure in the host.
    account = address.path.strip("/") if is_path_style else address.netloc.split(".", 1)[0]
    base = f"BlobEndpoint={account_url.rstrip('/')}"
    if credential is not None and re.search(r"(^|[?&])sig=", credential):
        return {"connection_string": f"{base};SharedAccessSignature={credential.lstrip('?')}"}
    if credential is not None:
        return {"connection_string": f"{base};AccountName={account};AccountKey={credential}"}
    return {"account_name": account, "account_host": address.netloc, "anon": False}


def _answered(error: Any) -> Fault:
    response = error.response
    status, code = int(response.status_code or 0), getattr(error, "error_code", None)
    code = str(getattr(code, "value", code) or response.headers.get("x-ms-error-code", ""))
    kind = _KINDS.get(code)
    text = str(error.message or "").splitlines()
    if code == "AuthenticationFailed" and "expired" in str(error).lower():
        kind = FaultKind.EXPIRED
    if kind is None:
        by_status = {
            401: FaultKind.DENIED,
            403: FaultKind.DENIED,
            404: FaultKind.MISSING,
            507: FaultKind.FULL,
        }
        passing = status >= 500 or status in (408, 429)
        kind = by_status.get(status, FaultKind.BUSY if passing else FaultKind.REFUSED)
    reason = f"{code or status} {text[0] if text else ''}".strip()
    return Fault(kind, reason, retry_after_s(dict(response.headers)))
