"""Checkpoints in Amazon S3, or in a service that is compatible with it."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

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
_DELETED_AT_ONCE = 1000
_KINDS = {
    "NoSuchBucket": FaultKind.NO_BUCKET,
    "NoSuchKey": FaultKind.MISSING,
    "404": FaultKind.MISSING,
    "ExpiredToken": FaultKind.EXPIRED,
    "ExpiredTokenException": FaultKind.EXPIRED,
    "RequestExpired": FaultKind.EXPIRED,
    "TokenRefreshRequired": FaultKind.EXPIRED,
    "AccessDenied": FaultKind.DENIED,
    "AllAccessDisabled": FaultKind.DENIED,
    "InvalidAccessKeyId": FaultKind.DENIED,
    "SignatureDoesNotMatch": FaultKind.DENIED,
    "InvalidToken": FaultKind.DENIED,
    "QuotaExceeded": FaultKind.FULL,
    "XMinioStorageFull": FaultKind.FULL,
    "EntityTooLarge": FaultKind.FULL,
    "SlowDown": FaultKind.BUSY,
    "Throttling": FaultKind.BUSY,
    "RequestTimeout": FaultKind.BUSY,
    "BadDigest": FaultKind.BROKEN,
    "XAmzContentSHA256Mismatch": FaultKind.BROKEN,
    "IncompleteBody": FaultKind.BROKEN,
}


class S3Storage(ObjectStorage):
    """Stores checkpoints in a bucket of S3.

    Args:
        bucket: name of the bucket.
        prefix: path inside of the bucket.
        access_key: access key of the account; None for the credentials that AWS's own chain finds.
        secret_key: secret key of the account.
        endpoint_url: address of a service that is compatible with S3; None for Amazon's.
    """

    extra = "s3"
    module = "s3fs"

    def __init__(
        self,
        bucket: str,
        prefix: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        endpoint_url: str | None = None,
    ) -> None:
        super().__init__(prefix, bucket, access_key, secret_key, endpoint_url)

    def _client(self) -> ObjectClient:
        bucket, access_key, secret_key, endpoint_url = self._options
        assert bucket is not None
        return S3Client(bucket, access_key, secret_key, endpoint_url)


class S3Client(ObjectClient):
    """Requests to a bucket of S3; see `S3Storage` for the arguments."""

    credentials_help = (
        "They come from `access_key` and `secret_key` of `checkpoint_storage`, or else from AWS's own chain: variables "
        "such as AWS_ACCESS_KEY_ID, ~/.aws, or the role of the machine."
    )

    def __init__(
        self, bucket: str, access_key: str | None, secret_key: str | None, endpoint_url: str | None
    ) -> None:
        # Imported here: it takes half a second, which only users of S3 should spend.
        import s3fs

        self.location = f"s3://{bucket}"
        self._bucket = bucket
        self._fs = s3fs.S3FileSystem(
            key=access_key,
            secret=secret_key,
            endpoint_url=endpoint_url,
            config_kwargs={
                "retries": {"max_attempts": 0},
                "connect_timeout": 10,
                "read_timeout": 60,
                # Every upload carries an MD5, which also services understand that know no other checksum.
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            },
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    async def put(self, key: str, content: bytes) -> None:
        md5 = await content_md5(content)
        answer = await self._call("put_object", Key=key, Body=content, ContentMD5=_base64(md5))
        check_md5(key, md5, _md5_of(answer))

    async def begin(self, key: str) -> str:
        answer = await self._call("create_multipart_upload", Key=key)
        upload_id: str = answer["UploadId"]
        return upload_id

    async def send_part(self, key: str, upload_id: str, number: int, content: bytes | bytearray) -> str:
        md5 = await content_md5(content)
        answer = await self._call(
            "upload_part",
            Key=key,
            UploadId=upload_id,
            PartNumber=number,
            Body=content,
            ContentMD5=_base64(md5),
        )
        check_md5(key, md5, _md5_of(answer))
        tag: str = answer["ETag"]
        return tag

    async def complete(self, key: str, upload_id: str, tags: Sequence[str], size_bytes: int) -> None:
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        try:
            await self._call(
                "complete_multipart_upload", Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
        except Exception as error:
            if _code(error) != "NoSuchUpload":
                raise
            # The answer to an earlier attempt may have been lost.
        answer = await self._call("head_object", Key=key)
        if answer["ContentLength"] != size_bytes:
            raise ChecksumMismatchError(f"{key} has {answer['ContentLength']} bytes instead of {size_bytes}")

    async def abort(self, key: str, upload_id: str) -> None:
        try:
            await self._call("abort_multipart_upload", Key=key, UploadId=upload_id)
        except Exception as error:
            if _code(error) != "NoSuchUpload":
                raise

    async def unfinished(self, prefix: str) -> list[UnfinishedUpload]:
        found = []
        async for page in self._pages("list_multipart_uploads", prefix):
            for upload in page.get("Uploads", ()):
                if upload["Key"].startswith(prefix):
                    started = upload["Initiated"].timestamp()
                    found.append(UnfinishedUpload(upload["Key"], upload["UploadId"], started))
        return found

    async def list(self, prefix: str) -> Mapping[str, StoredObject]:
        found = {}
        async for page in self._pages("list_objects_v2", prefix):
            for entry in page.get("Contents", ()):
                modified = entry["LastModified"].timestamp()
                found[entry["Key"]] = StoredObject(entry["Size"], modified, entry["ETag"])
        return found

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        answer = await self._call("get_object", Key=key, Range=f"bytes={start}-{end - 1}")
        async with answer["Body"] as stream:
            while chunk := await stream.read(_CHUNK_BYTES):
                yield chunk

    async def get(self, key: str) -> bytes:
        answer = await self._call("get_object", Key=key)
        async with answer["Body"] as stream:
            content: bytes = await stream.read()
            return content

    async def delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            names = [{"Key": key} for key in keys[first : first + _DELETED_AT_ONCE]]
            answer = await self._call("delete_objects", Delete={"Objects": names, "Quiet": True})
            for refused in answer.get("Errors", ()):
                raise _refusal(refused)

    async def delete_one(self, key: str) -> None:
        await self.delete([key])

    def fault(self, error: BaseException) -> Fault | None:
        from botocore import exceptions

        if isinstance(error, exceptions.ClientError):
            return _answered(error)
        if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            return Fault(FaultKind.NO_CREDENTIALS, "no credentials")
        if isinstance(error, exceptions.CredentialRetrievalError | exceptions.TokenRetrievalError):
            return Fault(FaultKind.EXPIRED, str(error))
        if isinstance(error, exceptions.BotoCoreError):
            is_network = isinstance(error, exceptions.HTTPClientError | exceptions.IncompleteReadError)
            return Fault(FaultKind.BROKEN if is_network else FaultKind.REFUSED, str(error))
        return broken_connection(error)

    async def _call(self, method: str, **arguments: Any) -> Any:
        await self._fs.set_session()
        client = await self._fs.get_s3(self._bucket)
        return await getattr(client, method)(Bucket=self._bucket, **arguments)

    async def _pages(self, method: str, prefix: str) -> AsyncIterator[Any]:
        await self._fs.set_session()
        client = await self._fs.get_s3(self._bucket)
        async for page in client.get_paginator(method).paginate(Bucket=self._bucket, Prefix=prefix):
            yield page


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _md5_of(answer: Mapping[str, Any]) -> str | None:
    """Return the MD5 that the store computed, in base64; None if its ETag is something else."""
    tag = str(answer.get("ETag", "")).strip('"')
    is_encrypted = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or answer.get(
        "SSECustomerAlgorithm"
    )
    return None if is_encrypted or not re.fullmatch("[0-9a-f]{32}", tag) else _base64(bytes.fromhex(tag))


def _code(error: Exception) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def _refusal(refused: Mapping[str, Any]) -> Exception:
    from botocore.exceptions import ClientError

    error: Exception = ClientError({"Error": dict(refused)}, "DeleteObjects")
    return error


def _answered(error: Any) -> Fault:
    said = error.response.get("Error", {})
    about = error.response.get("ResponseMetadata", {})
    code, status = str(said.get("Code", "")), int(about.get("HTTPStatusCode") or 0)
    reason = f"{code or status} {said.get('Message', '')}".strip()
    kind = _KINDS.get(code)
    if kind is None:
        by_status = {
            401: FaultKind.DENIED,
            403: FaultKind.DENIED,
            404: FaultKind.MISSING,
            507: FaultKind.FULL,
        }
        passing = status >= 500 or status in (408, 429)
        kind = by_status.get(status, FaultKind.BUSY if passing else FaultKind.REFUSED)
    if error.operation_name in ("ListObjectsV2", "ListMultipartUploads") and kind is FaultKind.MISSING:
        kind = FaultKind.NO_BUCKET
    return Fault(kind, reason, retry_after_s(about.get("HTTPHeaders")))
