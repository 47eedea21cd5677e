"""Refuses request bodies that are too large."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from det_keras.master.errors import ApiError
from det_keras.master.server.responses import error_reply

# The body contains an experiment's code: about 95 MB in base64.
_MOST_BYTES = 128 * 1024 * 1024


class TooLargeError(ApiError):
    """The body is too large."""

    status, code, reason = 413, 3, "InvalidArgument"


class BodyLimitMiddleware:
    """Refuses bodies that are too large, by their Content-Length or by the received bytes.

    Args:
        app: the next application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdigit() and int(length) > _MOST_BYTES:
            error = TooLargeError(f"A body may have {_MOST_BYTES >> 20} MiB, received {length} bytes.")
            await error_reply(scope["path"], error)(scope, receive, send)
            return
        await self._app(scope, _bounded(receive), send)


def _bounded(receive: Receive) -> Receive:
    """Return `receive` with a limit for bodies without a Content-Length."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > _MOST_BYTES:
            raise TooLargeError(f"A body may have {_MOST_BYTES >> 20} MiB.")
        return message

    return bounded
