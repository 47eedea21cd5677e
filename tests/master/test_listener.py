"""Connections of a server in this process: what they are doing, as it follows from the bytes of their clients."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn
from uvicorn.server import ServerState

from det_keras.master.accounts.auth import Caller
from det_keras.master.server.admission import Admission, AdmissionMiddleware
from det_keras.master.server.bodies import MOST_BYTES, read_body
from det_keras.master.server.capacity import Capacity
from det_keras.master.server.connections import Activity, Connections
from det_keras.master.server.listener import Listener
from det_keras.master.server.protocol import Connection

CAPACITY = dataclasses.replace(
    Capacity.of(1024),
    connections=8,
    waiting=2,
    calls=6,
    user_calls=4,
    anonymous_calls=1,
    user_uploads=2,
    uploads_per_caller=1,
)
LARGE = b"x" * (32 << 20)
GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"


class Shop:
    """A server of one application, whose calls of `/user...` have a login."""

    def __init__(self, sock: socket.socket) -> None:
        self.connections = Connections(CAPACITY)
        self.may_answer, self.has_read = asyncio.Event(), asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        config = uvicorn.Config(
            self._call,
            http="httptools",
            interface="asgi3",
            proxy_headers=False,
            lifespan="off",
            log_config=None,
        )
        config.load()
        state = ServerState()

        def make(address: str) -> Connection:
            return Connection(self.connections, address, config=config, server_state=state, app_state={})

        self._app = AdmissionMiddleware(self._answer, Admission(CAPACITY))
        self._port = sock.getsockname()[1]
        self.listener = Listener(sock, self.connections, make, None)
        self.listener.start()

    async def connect(self, text: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1024)
        writer.write(text)
        # A writer that is forgotten closes its connection.
        self._writers.append(writer)
        return reader, writer

    async def until(self, **counts: int) -> None:
        """Wait until so many connections do this."""
        deadline = asyncio.get_running_loop().time() + 15
        while any(self.connections.count(Activity[name]) != count for name, count in counts.items()):
            assert asyncio.get_running_loop().time() < deadline, {
                activity.name: self.connections.count(activity) for activity in Activity
            }
            await asyncio.sleep(0.005)

    async def _call(self, scope, receive, send) -> None:
        if scope["path"].startswith("/user"):
            scope["state"]["caller"] = Caller(1, "bob", False, "hash")
        await self._app(scope, receive, send)

    async def _answer(self, scope, receive, send) -> None:
        if scope["path"] == "/user/early":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
            return
        body = LARGE if scope["path"].endswith("/large") else await read_body(scope, receive, MOST_BYTES)
        self.has_read.set()
        if scope["path"].endswith("/wait"):
            scope["state"]["place"].leave_line()
            await self.may_answer.wait()
        length = str(len(body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving(kind: type[socket.socket] = socket.socket) -> AsyncIterator[Shop]:
    with kind(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        shop = Shop(sock)
        yield shop
        shop.listener.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


def test_connection_waits_then_calls_then_is_idle():
    async def test():
        async with serving() as shop:
            _, writer = await shop.connect(b"GET /user/wa")
            await shop.until(WAITING=1)
            writer.write(b"it HTTP/1.1\r\nHost: x\r\n\r\n")
            await shop.until(WAITING=0, CALL=1)
            shop.may_answer.set()
            await shop.until(CALL=0, IDLE=1)
            writer.close()
            await shop.until(IDLE=0)
            assert len(shop.connections) == 0

    run(test)


def test_request_without_a_login_waits_until_its_body_has_arrived():
    async def test():
        async with serving() as shop:
            _, writer = await shop.connect(b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
            await shop.until(WAITING=1)
            writer.write(b"a")
            await asyncio.sleep(0.05)
            await shop.until(WAITING=1, CALL=0)
            writer.write(b"b")
            await shop.until(WAITING=0, CALL=1)
            shop.may_answer.set()
            await shop.until(IDLE_ANONYMOUS=1)

    run(test)


def test_rest_of_a_body_that_nobody_reads_is_waited_for():
    async def test():
        async with serving() as shop:
            head = b"POST /user/early HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
            reader, writer = await shop.connect(head)
            assert await reader.readuntil(b"\r\n\r\n")
            await shop.until(IDLE=1)
            writer.write(b"a")
            await shop.until(WAITING=1)
            writer.write(b"b")
            await shop.until(IDLE=1)
            writer.write(GET % b"user")
            assert await reader.readuntil(b"\r\n\r\n")

    run(test)


def test_answer_that_is_not_read_keeps_its_place_among_the_calls():
    async def test():
        async with serving() as shop:
            unread, _ = await shop.connect(GET % b"large")
            await shop.until(STALLED=1)
            reader, _ = await shop.connect(GET % b"")
            assert b"503" in await reader.readuntil(b"\r\n\r\n")
            await unread.readuntil(b"\r\n\r\n")
            await unread.readexactly(len(LARGE))
            reader, _ = await shop.connect(GET % b"")
            assert b"200" in await reader.readuntil(b"\r\n\r\n")

    run(test)


@pytest.mark.parametrize(("path", "activity"), [(b"large", "STALLED"), (b"user/large", "CALL")])
def test_client_that_does_not_read_is_stalled_if_it_has_no_login(path, activity):
    async def test():
        async with serving() as shop:
            reader, _ = await shop.connect(GET % path)
            await shop.until(**{activity: 1})
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(LARGE))
            await shop.until(STALLED=0, CALL=0)
            assert len(shop.connections) == 1

    run(test)


def test_calls_end_their_connections_when_there_are_many():
    async def test():
        async with serving() as shop:
            for _ in range(3):
                await shop.connect(GET % b"user/wait")
            await shop.until(CALL=3)
            readers = [(await shop.connect(GET % b"user"))[0] for _ in range(5)]
            heads = [await reader.readuntil(b"\r\n\r\n") for reader in readers]
            assert [b"connection: close" in head for head in heads][-1]
            assert not any(b"503" in head for head in heads)

    run(test)


def test_new_clients_wait_while_all_connections_answer_calls():
    async def test():
        async with serving() as shop:
            for path in (b"user/wait",) * 4:
                await shop.connect(GET % path)
            await shop.until(CALL=4)
            # Refused, since users leave room for tasks, and served when there is room.
            reader, _ = await shop.connect(GET % b"user")
            assert b"503" in await reader.readuntil(b"\r\n\r\n")
            shop.may_answer.set()
            await shop.until(CALL=0)
            reader, _ = await shop.connect(GET % b"user")
            assert b"200" in await reader.readuntil(b"\r\n\r\n")

    run(test)


def test_silent_connections_give_way_to_those_with_a_request():
    async def test():
        async with serving() as shop:
            silent = [await shop.connect() for _ in range(20)]
            for _ in range(10):
                reader, writer = await shop.connect(GET % b"user")
                assert b"200" in await reader.readuntil(b"\r\n\r\n")
                writer.close()
            assert shop.connections.count(Activity.WAITING) <= CAPACITY.waiting
            assert await silent[0][0].read() == b""

    run(test)


UPLOAD = b"POST /user/%s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


def test_slow_uploads_of_a_user_leave_room_for_calls():
    async def test():
        async with serving() as shop:
            slow, writer = await shop.connect(UPLOAD % b"a" + b"a")
            await shop.until(CALL=1)
            reader, _ = await shop.connect(UPLOAD % b"b" + b"a")
            assert b"503" in await reader.readuntil(b"\r\n\r\n")
            assert b"bodies have not arrived of user 'bob'" in await reader.read(1000)
            for text in (GET % b"user", UPLOAD % b"c" + b"ab"):
                reader, _ = await shop.connect(text)
                assert b"200" in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"b")
            assert b"200" in await slow.readuntil(b"\r\n\r\n")

    run(test)


def test_upload_that_has_arrived_makes_room_for_another():
    async def test():
        async with serving() as shop:
            _, writer = await shop.connect(UPLOAD % b"wait" + b"a")
            await shop.until(CALL=1)
            writer.write(b"b")
            await shop.has_read.wait()
            await shop.connect(UPLOAD % b"c" + b"a")
            await shop.until(CALL=2)

    run(test)


class ExhaustedSocket(socket.socket):
    """A socket of a process that has no file left for the first connections."""

    failures = 3

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_connections_are_accepted_again_when_there_are_files_with_one_line_in_the_log(caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("det_keras.master.server.listener._PAUSE_WITHOUT_FILES_S", 0.05)

    async def test():
        async with serving(ExhaustedSocket) as shop:
            reader, _ = await shop.connect(GET % b"user")
            assert b"200" in await reader.readuntil(b"\r\n\r\n")

    run(test)
    (line,) = (record.getMessage() for record in caplog.records)
    assert "Too many open files" in line
