"""Compresses answers for clients that accept it."""

from __future__ import annotations

import functools
import gzip

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LEAST_BYTES = 1000
# A higher level takes several times as long, and saves a few percent.
_LEVEL = 5
_KINDS = ("text/", "application/json", "application/javascript", "image/svg")


class CompressionMiddleware:
    """Compresses answers that are sent as a whole.

    Streams pass unchanged: compression would delay their lines, and archives are compressed already.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not accepts_gzip(Headers(scope=scope)):
            await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, _Answer(send))


def accepts_gzip(headers: Headers) -> bool:
    """Return whether a client accepts compressed answers."""
    return "gzip" in headers.get("accept-encoding", "")


class _Answer:
    """Sends one answer: its start waits until it is known whether the body follows as a whole."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        start, self._start = self._start, None
        if start is not None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                message = await _compressed(start, message)
            await self._send(start)
        await self._send(message)


async def _compressed(start: Message, message: Message) -> Message:
    """Return the body of an answer, compressed if that is worth it; changes the headers in `start`."""
    body = message.get("body", b"")
    headers = MutableHeaders(raw=start["headers"])
    is_text = headers.get("content-type", "").startswith(_KINDS)
    if len(body) < _LEAST_BYTES or not is_text or "content-encoding" in headers:
        return message
    body = await anyio.to_thread.run_sync(functools.partial(gzip.compress, body, _LEVEL, mtime=0))
    headers["Content-Encoding"] = "gzip"
    headers["Content-Length"] = str(len(body))
    headers.add_vary_header("Accept-Encoding")
    return {**message, "body": body}
