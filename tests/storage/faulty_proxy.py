"""A proxy on loopback that does to requests what networks and busy stores do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["FaultyProxy", "Request", "proxied"]


@dataclass
class Request:
    """A request on its way to the server.

    Attributes:
        number: of this request, from 0.
        method: of HTTP.
        path: with the query.
        body: without the headers.
    """

    number: int
    method: str
    path: str
    head: bytes
    body: bytes = field(repr=False)


#: Returns what to do with a request: None passes it on; bytes are the answer in its place; "reset" breaks the
#: connection after a part of the answer; "reset request" before the server has the whole request; "flip" alters a byte
#: of the body; "flip answer" alters the last byte of the answer.
Decide = Callable[[Request], "bytes | str | None"]


class FaultyProxy:
    """A proxy before a server.

    Attributes:
        port: its port.
        decide: what to do with each request; see `Decide`.
        requests: the requests so far.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.decide: Decide = lambda request: None
        self.requests: list[Request] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, with one connection to the server for each request."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, EOFError):
            while await self._pass_on(reader, writer):
                pass
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, head)
        method, path, _ = head.split(b"\r\n")[0].decode().split(" ", 2)
        request = Request(len(self.requests), method, path, head, body)
        self.requests.append(request)
        action = self.decide(request)
        if isinstance(action, bytes):
            writer.write(action)
            await writer.drain()
            return True
        if action == "reset request":
            writer.transport.abort()
            return False
        if action == "flip" and body:
            body = body[:-3] + bytes([body[-3] ^ 1]) + body[-2:]
        answer = await self._ask(head, body)
        if action == "flip answer":
            answer = answer[:-1] + bytes([answer[-1] ^ 1])
        if action == "reset":
            writer.write(answer[: 2 * len(answer) // 3])
            await writer.drain()
            writer.close()
            return False
        writer.write(answer)
        await writer.drain()
        return False

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        first, *lines = head.rstrip(b"\r\n").split(b"\r\n")
        dropped = (b"connection:", b"expect:", b"transfer-encoding:", b"content-length:")
        kept = [line for line in lines if not line.lower().startswith(dropped)]
        length = b"Content-Length: %d" % len(body)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
        writer.write(b"\r\n".join([first, *kept, length, b"Connection: close", b"", b""]) + body)
        answer = await reader.read()
        writer.close()
        return answer


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return await reader.readexactly(int(line.split(b":")[1]))
    if b"transfer-encoding: chunked" not in head.lower():
        return b""
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return body


@contextmanager
def proxied(target: int) -> Iterator[FaultyProxy]:
    """Yield a proxy before a port, which runs in a thread of its own."""
    proxy, loop = FaultyProxy(target), asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(proxy.handle, "127.0.0.1", 0, limit=1 << 26))
    proxy.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        # On the loop itself: a server may not be closed from another thread while a connection ends.
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    connections = asyncio.all_tasks() - {asyncio.current_task()}
    for connection in connections:
        connection.cancel()
    await asyncio.gather(*connections, return_exceptions=True)
