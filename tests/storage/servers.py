"""Servers of object stores on loopback, which speak the real protocols: the tests ask them, not our own code."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

__all__ = ["AZURE_KEY", "SERVERS", "AzureServer", "GcsServer", "S3Server", "Server", "running"]

_FOLDER = Path(
    os.environ.get("DET_KERAS_TEST_SERVERS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "det_keras-test-servers"
)
#: The account of the emulator, as its documentation has it.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Server:
    """A server of one kind.

    Attributes:
        kind: `type` of its `checkpoint_storage`.
        port: its port on 127.0.0.1.
    """

    kind: str

    def __init__(self, port: int) -> None:
        self.port = port

    @classmethod
    def command(cls, port: int) -> list[str]:
        """Return the command that starts it."""
        raise NotImplementedError

    def variables(self, port: int) -> dict[str, str]:
        """Return what the environment of a client says, for the server behind a port."""
        return {}

    def section(self, bucket: str, port: int | None = None) -> dict[str, Any]:
        """Return a `checkpoint_storage` section; `port` is that of a proxy before the server."""
        raise NotImplementedError

    def make_bucket(self) -> str:
        """Make an empty bucket and return its name."""
        raise NotImplementedError

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Return the content of all objects."""
        raise NotImplementedError

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Store an object."""
        raise NotImplementedError

    def remove(self, bucket: str, key: str) -> None:
        """Delete an object."""
        raise NotImplementedError

    def unfinished(self, bucket: str) -> list[str]:
        """Return the keys of unfinished uploads."""
        return []


class S3Server(Server):
    """moto's server."""

    kind = "s3"

    @classmethod
    def command(cls, port: int) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]

    def variables(self, port: int) -> dict[str, str]:
        return {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}

    def section(self, bucket: str, port: int | None = None) -> dict[str, Any]:
        return {
            "type": "s3",
            "bucket": bucket,
            "prefix": "some/where",
            "access_key": "key",
            "secret_key": "secret",
            "endpoint_url": f"http://127.0.0.1:{port or self.port}",
        }

    def make_bucket(self) -> str:
        bucket = f"bucket-{uuid4().hex[:12]}"
        self._client().create_bucket(Bucket=bucket)
        return bucket

    def keys(self, bucket: str) -> list[str]:
        """Return the keys of all objects."""
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))

    def objects(self, bucket: str) -> dict[str, bytes]:
        client = self._client()
        return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in self.keys(bucket)}

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self._client().put_object(Bucket=bucket, Key=key, Body=content)

    def remove(self, bucket: str, key: str) -> None:
        self._client().delete_object(Bucket=bucket, Key=key)

    def unfinished(self, bucket: str) -> list[str]:
        uploads = self._client().list_multipart_uploads(Bucket=bucket).get("Uploads", ())
        return [upload["Key"] for upload in uploads]

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            region_name="us-east-1",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )


class GcsServer(Server):
    """fake-gcs-server."""

    kind = "gcs"

    @classmethod
    def command(cls, port: int) -> list[str]:
        options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        return [str(_FOLDER / "bin/fake-gcs-server"), *options, "-log-level", "error"]

    def variables(self, port: int) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "NO_GCE_CHECK": "true"}

    def section(self, bucket: str, port: int | None = None) -> dict[str, Any]:
        return {"type": "gcs", "bucket": bucket, "prefix": "some/where"}

    def make_bucket(self) -> str:
        bucket = f"bucket-{uuid4().hex[:12]}"
        httpx.post(f"{self._base}/b?project=p", json={"name": bucket}).raise_for_status()
        return bucket

    def objects(self, bucket: str) -> dict[str, bytes]:
        items = httpx.get(f"{self._base}/b/{bucket}/o").raise_for_status().json().get("items", ())
        return {item["name"]: self._get(bucket, item["name"]) for item in items}

    def put(self, bucket: str, key: str, content: bytes) -> None:
        url = f"http://127.0.0.1:{self.port}/upload/storage/v1/b/{bucket}/o"
        httpx.post(url, params={"uploadType": "media", "name": key}, content=content).raise_for_status()

    def remove(self, bucket: str, key: str) -> None:
        httpx.delete(self._url(bucket, key)).raise_for_status()

    @property
    def _base(self) -> str:
        return f"http://127.0.0.1:{self.port}/storage/v1"

    def _url(self, bucket: str, key: str) -> str:
        return f"{self._base}/b/{bucket}/o/{key.replace('/', '%2F')}"

    def _get(self, bucket: str, key: str) -> bytes:
        return httpx.get(self._url(bucket, key), params={"alt": "media"}).raise_for_status().content


class AzureServer(Server):
    """Azurite."""

    kind = "azure"

    @classmethod
    def command(cls, port: int) -> list[str]:
        options = ["--blobPort", str(port), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
        return [str(_FOLDER / "node_modules/.bin/azurite-blob"), *options, "--disableTelemetry"]

    def section(self, bucket: str, port: int | None = None) -> dict[str, Any]:
        return {
            "type": "azure",
            "container": bucket,
            "connection_string": self._connection(port or self.port),
        }

    def make_bucket(self) -> str:
        bucket = f"bucket-{uuid4().hex[:12]}"
        self._client(bucket).create_container()
        return bucket

    def objects(self, bucket: str) -> dict[str, bytes]:
        client = self._client(bucket)
        return {blob.name: client.download_blob(blob.name).readall() for blob in client.list_blobs()}

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self._client(bucket).upload_blob(key, content, overwrite=True)

    def remove(self, bucket: str, key: str) -> None:
        self._client(bucket).delete_blob(key)

    def unfinished(self, bucket: str) -> list[str]:
        listed = self._client(bucket).list_blobs(include=["uncommittedblobs"])
        return sorted({blob.name for blob in listed} - self.objects(bucket).keys())

    def _connection(self, port: int) -> str:
        account = "devstoreaccount1"
        return (
            f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={AZURE_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{account};"
        )

    def _client(self, bucket: str) -> Any:
        from azure.storage.blob import ContainerClient

        return ContainerClient.from_connection_string(self._connection(self.port), bucket)


SERVERS: dict[str, type[Server]] = {"s3": S3Server, "gcs": GcsServer, "azure": AzureServer}


@contextmanager
def running(kind: str) -> Iterator[Server | None]:
    """Yield a server; None if it is not installed."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = SERVERS[kind].command(port)
    if not Path(command[0]).exists():
        yield None
        return
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet)
    try:
        _wait_for(port, process)
        yield SERVERS[kind](port)
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30.0
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not listen; its exit code is {process.poll()}.")
