"""Compresses answers for clients that accept it."""

from __future__ import annotations

import functools
import gzip
import zlib
from typing import Any

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LEAST_BYTES = 1000
# A higher level takes several times as long, and saves a few percent.
_LEVEL = 5
_KINDS = ("text/", "application/json", "application/javascript", "image/svg")
# Of streams: lines of logs, as JSON or as text. Events of pages are few and short, and archives are compressed already.
_KINDS_OF_STREAMS = ("application/json", "text/plain")
# The window of zlib for a stream in the format of gzip.
_GZIP_WINDOW = 31
# Compressing more takes long enough to delay other answers.
_MOST_ON_THE_LOOP = 4096


class CompressionMiddleware:
    """Compresses answers that are sent as a whole, and streams of lines.

    Each part of a stream is flushed, so that its lines arrive as early as without compression.

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
        self._packer: Any = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        start, self._start = self._start, None
        if start is not None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                message = await _compressed(start, message)
            elif message["type"] == "http.response.body" and _is_stream_of_lines(start):
                self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
                _mark(MutableHeaders(raw=start["headers"]))
            await self._send(start)
        if self._packer is not None and message["type"] == "http.response.body":
            message = await self._packed(message)
        await self._send(message)

    async def _packed(self, message: Message) -> Message:
        """Return a part of a stream, compressed so that the client can decompress it at once."""
        body = message.get("body", b"")
        mode = zlib.Z_SYNC_FLUSH if message.get("more_body", False) else zlib.Z_FINISH
        if len(body) <= _MOST_ON_THE_LOOP:
            packed = _flushed(self._packer, body, mode)
        else:
            packed = await anyio.to_thread.run_sync(_flushed, self._packer, body, mode)
        return {**message, "body": packed}


def _flushed(packer: Any, body: bytes, mode: int) -> bytes:
    packed: bytes = packer.compress(body) + packer.flush(mode)
    return packed


def _is_stream_of_lines(start: Message) -> bool:
    headers = MutableHeaders(raw=start["headers"])
    is_text = headers.get("content-type", "").startswith(_KINDS_OF_STREAMS)
    return is_text and "content-encoding" not in headers and "content-length" not in headers


def _mark(headers: MutableHeaders) -> None:
    headers["Content-Encoding"] = "gzip"
    headers.add_vary_header("Accept-Encoding")


async def _compressed(start: Message, message: Message) -> Message:
    """Return the body of an answer, compressed if that is worth it; changes the headers in `start`."""
    body = message.get("body", b"")
    headers = MutableHeaders(raw=start["headers"])
    is_text = headers.get("content-type", "").startswith(_KINDS)
    if len(body) < _LEAST_BYTES or not is_text or "content-encoding" in headers:
        return message
    body = await anyio.to_thread.run_sync(functools.partial(gzip.compress, body, _LEVEL, mtime=0))
    headers["Content-Length"] = str(len(body))
    _mark(headers)
    return {**message, "body": body}
