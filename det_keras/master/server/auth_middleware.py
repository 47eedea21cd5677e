"""What every call passes before it is routed: is the master open, is the address usual, who is it.

A route is closed unless it is named here, so that one added later is safe by default.
"""

from __future__ import annotations

import hmac
import re
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from det_keras.master.accounts.auth import Accounts, page_token
from det_keras.master.database.events import Notifier
from det_keras.master.errors import (
    ApiError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from det_keras.master.server.browser import wants_page
from det_keras.master.server.responses import error_reply
from det_keras.master.wire import fits_64_bits

__all__ = ["Gate"]

_OPEN = frozenset(
    {
        ("GET", "/info"),
        ("HEAD", "/info"),
        ("POST", "/api/v1/auth/login"),
        ("GET", "/api/v1/master"),
        ("GET", "/login"),
        ("GET", "/signin"),
    }
)
# The same for everybody: how pages look, and how they move.
_OPEN_BELOW = "/static/"
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
# Code travels inside of the body: about 95 MB of it, in base64.
_MOST_BYTES = 128 * 1024 * 1024
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DIGITS_OF_64_BITS = 19
# Enough digits to be too large, and few enough to be read at once.
_LONGEST = 40
_SNAKE = re.compile(r"_([a-z0-9])")


class TooLargeError(ApiError):
    """The body is larger than anything that clients send."""

    status, code, reason = 413, 3, "InvalidArgument"


class Gate:
    """Lets calls in, as ASGI middleware.

    Args:
        app: what is behind.
        accounts: knows tokens.
        notifier: knows when the master is about to stop.
    """

    def __init__(self, app: ASGIApp, accounts: Accounts, notifier: Notifier) -> None:
        self._app = app
        self._accounts = accounts
        self._notifier = notifier

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _usual_address(scope)
        try:
            self._admit(scope)
        except ApiError as error:
            await _refusal(scope, error)(scope, receive, send)
            return
        await self._app(scope, _bounded(receive), send)

    def _admit(self, scope: Scope) -> None:
        if self._notifier.is_closing:
            raise UnavailableError("The master is stopping.")
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > _MOST_BYTES:
            raise TooLargeError(f"A body may have {_MOST_BYTES >> 20} MiB, received {length} bytes.")
        _refuse_large_numbers(scope)
        is_presented, token = _token(headers)
        is_open = (scope["method"], scope["path"]) in _OPEN or (
            scope["method"] in _HARMLESS and scope["path"].startswith(_OPEN_BELOW)
        )
        if scope["method"] not in _HARMLESS and not is_presented:
            _refuse_other_sites(headers, is_by_cookie=bool(token) and not is_open)
        if not is_open:
            if not token:
                raise UnauthenticatedError("token missing")
            scope.setdefault("state", {}).update(caller=self._accounts.caller(token), token=token)
            if scope["method"] not in _HARMLESS and not is_presented:
                _refuse_other_pages(headers, token)


def _refuse_large_numbers(scope: Scope) -> None:
    """Refuse numbers that no database keeps, wherever they stand, before anybody looks them up."""
    values = [value for _, value in parse_qsl(scope["query_string"].decode("latin-1"))]
    for text in (*scope["path"].split("/"), *values):
        if (
            len(text) >= _DIGITS_OF_64_BITS
            and _INTEGER.fullmatch(text)
            and not fits_64_bits(int(text[:_LONGEST]))
        ):
            raise InvalidArgumentError(f"{text[:_LONGEST]} is no number of 64 bits.")


def _refuse_other_sites(headers: Headers, *, is_by_cookie: bool) -> None:
    """Refuse what a page of another site makes a browser send: the browser adds the cookie by itself.

    Any other port of this machine is another site too: another account's server may be there. Browsers say where
    a request comes from; one that says nothing may not act by cookie.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        is_own = site in ("same-origin", "none")
    elif origin is not None:
        is_own = urlsplit(origin).netloc == headers.get("host")
    else:
        is_own = not is_by_cookie
    if not is_own:
        raise PermissionDeniedError("A page of another site may not do that with your login.")


def _refuse_other_pages(headers: Headers, token: str) -> None:
    """Refuse a change by cookie without the page's token, which nobody knows who cannot read our pages."""
    if not hmac.compare_digest(headers.get("x-csrf-token", "").encode(), page_token(token).encode()):
        raise PermissionDeniedError("A change by cookie needs the token of the page in `X-CSRF-Token`.")


def _refusal(scope: Scope, error: ApiError) -> Response:
    """Return the answer to one who was not let in: a browser that has to log in is shown where."""
    if isinstance(error, UnauthenticatedError) and wants_page(scope):
        query = scope["query_string"].decode("latin-1")
        target = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"/signin?next={quote(target, safe='')}", status_code=303)
    return error_reply(scope["path"], error)


def _token(headers: Headers) -> tuple[bool, str]:
    """Return the token, empty for none, and whether the caller presents it himself, not a browser by cookie."""
    for name in ("authorization", "grpc-metadata-x-allocation-token"):
        value = headers.get(name)
        if value is not None:
            return True, _bearer(value)
    # Every port of this host gets all cookies: odd ones of other programs must not hide ours, as they do in the
    # standard library's parser.
    return False, cookie_parser(headers.get("cookie", "")).get("auth", "")


def _bearer(value: str) -> str:
    scheme, _, token = value.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthenticatedError("invalid credentials")
    return token.strip()


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


def _bounded(receive: Receive) -> Receive:
    """Return `receive` that ends a body which says nothing of its length and does not end."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > _MOST_BYTES:
            raise TooLargeError(f"A body may have {_MOST_BYTES >> 20} MiB.")
        return message

    return bounded
