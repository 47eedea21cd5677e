"""What networks and busy stores do to checkpoints, before servers that speak the real protocols."""

from __future__ import annotations

import os
import random
import time
from uuid import uuid4

import pytest
from faulty_proxy import proxied

from det_keras import core, storage
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.core.file_plan import FilePlan, Slice
from det_keras.errors import CheckpointError, StorageError
from det_keras.storage import requests

BIG = os.urandom(40 << 20)
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nx-ms-error-code: ServerBusy\r\n"
    b"Content-Type: application/xml\r\nContent-Length: 0\r\n\r\n"
)


@pytest.fixture
def proxy(bucket, monkeypatch):
    with proxied(bucket.server.port) as proxy:
        for name, value in bucket.server.variables(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def store(bucket, proxy, monkeypatch):
    monkeypatch.setattr(requests, "_FIRST_DELAY_S", 0.01)
    # Connections of earlier tests go to their proxies; gcsfs takes the address from the environment.
    monkeypatch.setattr(storage.object_storage, "_open", {})
    return bucket.store(proxy.port)


def put(store, content=BIG):
    uuid = str(uuid4())
    with store.store_streams(uuid) as target:
        with target.open("small") as file:
            file.write(b"small")
        with target.open("big") as file:
            file.write(content)
    return uuid


def assert_whole(store, uuid, content=BIG):
    with store.restore_path(uuid) as directory:
        assert (directory / "big").read_bytes() == content
        assert (directory / "small").read_bytes() == b"small"


def assert_only(bucket, *uuids):
    """Check that these checkpoints are stored, and nothing else."""
    assert {name.split("/")[0] for name in bucket.objects()} == set(uuids)
    assert bucket.unfinished() == []


def test_storm_of_503_is_waited_out(store, proxy, bucket):
    drawn = random.Random(1)
    busy = BUSY.replace(b"Retry-After: 1", b"Retry-After: 0")
    proxy.decide = lambda request: busy if drawn.random() < 0.3 else None
    uuid = put(store)
    assert_whole(store, uuid)
    proxy.decide = lambda request: None
    assert_only(bucket, uuid)


def test_retry_after_is_kept(store, proxy, monkeypatch):
    """Without the header, the wait would be at most `_FIRST_DELAY_S` of the fixture."""
    waits, delay_s = [], requests._delay_s

    def noted(*arguments):
        waits.append(delay_s(*arguments))
        return waits[-1]

    monkeypatch.setattr(requests, "_delay_s", noted)
    proxy.decide = lambda request: BUSY if request.number == 0 else None
    started = time.monotonic()
    store.exists(str(uuid4()))
    # How much longer it took depends on what else the machine does; what was waited for does not.
    assert time.monotonic() - started >= 1.0
    assert [1.0 <= wait <= 1.2 for wait in waits] == [True]


@pytest.mark.parametrize("action", ["reset request", "reset"])
def test_reset_in_the_middle_of_a_part_is_repeated(store, proxy, bucket, action):
    struck = []

    def decide(request):
        if request.method in ("PUT", "POST") and len(request.body) > 4 << 20 and len(struck) < 2:
            struck.append(request)
            return action
        return None

    proxy.decide = decide
    uuid = put(store)
    assert len(struck) == 2
    assert_whole(store, uuid)
    assert_only(bucket, uuid)


def test_broken_restore_continues_where_it_broke(store, proxy):
    uuid = put(store)
    asked = []

    def decide(request):
        lines = request.head.decode().lower().split("\r\n")
        span = [line.split("bytes=")[1] for line in lines if "range: bytes=" in line]
        if request.method == "GET" and "big" in request.path and span:
            first, last = map(int, span[0].split("-"))
            asked.append((first, last))
            return "reset" if len(asked) <= 3 and last - first > 1 << 20 else None
        return None

    proxy.decide = decide
    assert_whole(store, uuid)
    if store.extra == "azure":
        # Its client library does not hand out a part of an answer; the pieces are small.
        assert len(asked) == len(set(asked)) + 3
        assert max(last - first for first, last in asked) < 4 << 20
        return
    # What was asked for again began behind what had arrived.
    assert len(asked) >= 5
    assert len({last for _, last in asked}) < len(asked)
    assert len({first for first, _ in asked}) == len(asked)


def test_flipped_byte_on_the_way_up_is_sent_again(store, proxy, bucket):
    flipped = []

    def decide(request):
        if len(request.body) > 4 << 20 and not flipped:
            flipped.append(request)
            return "flip"
        return None

    proxy.decide = decide
    uuid = put(store)
    assert flipped
    assert_whole(store, uuid)
    assert_only(bucket, uuid)


def test_flipped_byte_on_the_way_down_is_fetched_again(store, proxy):
    uuid = put(store)
    flipped = []

    def decide(request):
        if request.method == "GET" and "big" in request.path and "comp=" not in request.path and not flipped:
            flipped.append(request)
            return "flip answer"
        return None

    proxy.decide = decide
    assert_whole(store, uuid)
    assert flipped


def test_flipped_byte_in_the_store_is_found(store, bucket):
    uuid = put(store)
    bucket.put(f"{uuid}/big", BIG[:-1] + bytes([BIG[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="`big` does not match its SHA-256"), store.restore_path(uuid):
        pass


def test_missing_part_is_no_checkpoint(store, proxy, bucket):
    """A part that the store forgot: completing the file fails, and nothing of the checkpoint remains."""

    def decide(request):
        is_part = len(request.body) > 4 << 20
        if is_part and (
            "partNumber=2" in request.path or "-00002" in request.path or "comp=block&" in request.path
        ):
            # Answered as if it had been stored.
            return _accepted(bucket.server.kind, request)
        return None

    proxy.decide = decide
    with pytest.raises(StorageError, match=bucket.name):
        put(store)
    proxy.decide = lambda request: None
    assert_only(bucket)


def _accepted(kind, request):
    import base64
    import hashlib

    md5 = hashlib.md5(request.body)
    if kind == "s3":
        return b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nContent-Length: 0\r\n\r\n' % md5.hexdigest().encode()
    if kind == "azure":
        return b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
    answer = b'{"md5Hash": "%s", "size": "%d"}' % (base64.b64encode(md5.digest()), len(request.body))
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(answer),
        answer,
    )


FULL = {
    "s3": b"<Error><Code>QuotaExceeded</Code><Message>full</Message></Error>",
    "gcs": b'{"error": {"code": 403, "message": "The quota of the bucket is exceeded"}}',
    "azure": b"<Error><Code>InsufficientAccountResources</Code><Message>full</Message></Error>",
}


def _answer(status, body, *headers):
    lines = "".join(f"{header}\r\n" for header in headers)
    return (f"HTTP/1.1 {status} x\r\n{lines}Content-Length: {len(body)}\r\n\r\n").encode() + body


class State:
    """A state of one file."""

    size_bytes = len(BIG)

    def fill(self, memory):
        memory[: len(BIG)] = BIG

    def plan(self):
        return FilePlan({"big": [Slice(0, len(BIG))], "small": [b"small"]})


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.01)
    with core.init(run_dir=tmp_path / "run") as context:
        yield context


@pytest.mark.process
def test_full_bucket_costs_that_checkpoint_alone(store, proxy, bucket, context, caplog):
    context.checkpoint.storage = store
    writer, stored = CheckpointWriter(context.checkpoint), []
    for steps, is_full in ((1, False), (2, True), (3, False)):
        body = FULL[bucket.server.kind]
        status = 403 if bucket.server.kind != "azure" else 507
        full = _answer(status, body, "Content-Type: application/xml")
        proxy.decide = lambda request, is_full=is_full, full=full: (
            full if is_full and len(request.body) > 4 << 20 else None
        )
        writer.submit({"steps_completed": steps}, State(), stored.append)
        if is_full:
            with pytest.raises(CheckpointError, match=bucket.name):
                writer.wait()
        else:
            writer.wait()
    writer.close()
    proxy.decide = lambda request: None
    assert len(stored) == 2
    assert_only(bucket, *stored)
    assert_whole(store, stored[-1])
    assert "Free space, or raise the quota" in caplog.text


@pytest.mark.process
def test_what_only_the_user_can_help_is_said_once_with_bucket_and_key(store, bucket, proxy, context, caplog):
    body = b'<Error><Code>AccessDenied</Code><Message>no "write"</Message></Error>'
    denied = _answer(403, body, "x-ms-error-code: AuthorizationFailure")
    proxy.decide = lambda request: denied if len(request.body) > 4 << 20 else None
    context.checkpoint.storage = store
    writer = CheckpointWriter(context.checkpoint)
    writer.submit({"steps_completed": 7}, State(), lambda uuid: None)
    with pytest.raises(CheckpointError, match="do not permit"):
        writer.wait()
    writer.close()
    assert caplog.text.count("batch 7 failed") == 1
    assert f"{bucket.name}/" in caplog.text
    assert "/big" in caplog.text
    assert "Training continues" in caplog.text


def test_wrong_bucket_names_the_field(store, bucket):
    bucket.name += "-none"
    other = bucket.store(int(store._options[-1].rsplit(":")[-1]) if bucket.server.kind == "s3" else None)
    with pytest.raises(
        StorageError, match=r"-none.* does not exist.*`checkpoint_storage\.(bucket|container)`"
    ) as caught:
        put(other)
    assert not caught.value.can_retry


def test_expired_credentials_are_read_again_at_the_next_call(store, proxy):
    expired = {
        "s3": _answer(400, b"<Error><Code>ExpiredToken</Code><Message>x</Message></Error>"),
        "gcs": _answer(401, b'{"error": {"code": 401, "message": "Invalid Credentials"}}'),
        "azure": _answer(401, b"", "x-ms-error-code: ExpiredAuthenticationToken"),
    }[store.extra]
    proxy.decide = lambda request: expired
    with pytest.raises(StorageError, match="Renew the credentials"):
        store.exists(str(uuid4()))
    expired_client = next(iter(storage.object_storage._open.values())).client
    proxy.decide = lambda request: None
    assert not store.exists(str(uuid4()))
    assert next(iter(storage.object_storage._open.values())).client is not expired_client
