"""Normalises addresses before routing: no trailing slash, query names in camelCase."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Receive, Scope, Send

from det_keras.master.errors import InvalidArgumentError
from det_keras.master.server.responses import error_reply
from det_keras.master.wire import fits_64_bits

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DIGITS_OF_64_BITS = 19
# More digits than a 64-bit number has, but few enough to parse quickly.
_LONGEST = 40
_SNAKE = re.compile(r"_([a-z0-9])")


class AddressFormMiddleware:
    """Normalises the address of a call, and refuses numbers in it that the database cannot store.

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
        scope = _usual_address(scope)
        try:
            _refuse_large_numbers(scope)
        except InvalidArgumentError as error:
            await error_reply(scope["path"], error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _refuse_large_numbers(scope: Scope) -> None:
    """Refuse numbers in the path or query that the database cannot store."""
    values = [value for _, value in parse_qsl(scope["query_string"].decode("latin-1"))]
    for text in (*scope["path"].split("/"), *values):
        if (
            len(text) >= _DIGITS_OF_64_BITS
            and _INTEGER.fullmatch(text)
            and not fits_64_bits(int(text[:_LONGEST]))
        ):
            raise InvalidArgumentError(f"{text[:_LONGEST]} is not a 64-bit number.")


def _usual_address(scope: Scope) -> Scope:
    """Return the call without a trailing slash, and with query parameters in camelCase."""
    path = scope["path"]
    if not path.startswith("/api/v1/"):
        return scope
    query = scope["query_string"]
    if b"_" in query:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        query = urlencode([(_camel(name), value) for name, value in pairs]).encode("latin-1")
    path = path.rstrip("/")
    return {**scope, "path": path, "raw_path": path.encode(), "query_string": query}


def _camel(name: str) -> str:
    return _SNAKE.sub(lambda match: match[1].upper(), name)
