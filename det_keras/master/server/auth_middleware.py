"""Authenticates calls, and refuses calls without a valid token.

Every route needs a token unless it is listed here, so a route that is added later is safe by default.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from det_keras.master.accounts.auth import Accounts, Caller
from det_keras.master.database.attribution import Author, acting
from det_keras.master.database.notifier import Notifier
from det_keras.master.errors import (
    ApiError,
    UnauthenticatedError,
    UnavailableError,
)
from det_keras.master.server.browser import refuse_other_pages, refuse_other_sites, wants_page
from det_keras.master.server.responses import error_reply

_LOGIN = "/login"
_OPEN = frozenset(
    {
        ("GET", "/info"),
        ("HEAD", "/info"),
        ("POST", "/api/v1/auth/login"),
        ("GET", "/api/v1/master"),
        ("GET", _LOGIN),
        ("GET", "/signin"),
    }
)
# Styles and scripts of the pages, which are the same for all users.
_OPEN_BELOW = "/static/"
# The report of an experiment, for those who have its link: the token of the link is the last part of the address.
_SHARED = "/shared/"
#: Methods of calls that change nothing.
HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})


class AuthMiddleware:
    """Authenticates calls.

    Args:
        app: the next application.
        accounts: checks tokens.
        notifier: tells when the master is stopping.
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
        try:
            self._admit(scope)
        except ApiError as error:
            await _refusal(scope, error)(scope, receive, send)
            return
        author = _author(scope)
        if author is None:
            await self._app(scope, receive, send)
            return
        with acting(author):
            await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        if self._notifier.is_closing:
            raise UnavailableError("The master is stopping.")
        headers = Headers(scope=scope)
        is_presented, token = _token(headers)
        is_open = _is_open(scope["method"], scope["path"])
        if scope["method"] not in HARMLESS and not is_presented:
            refuse_other_sites(headers, is_by_cookie=bool(token) and not is_open)
        state = scope.setdefault("state", {})
        if not is_open:
            if not token:
                raise UnauthenticatedError("token missing")
            state.update(caller=self._accounts.caller(token), token=token)
            if scope["method"] not in HARMLESS and not is_presented:
                refuse_other_pages(headers, token)


def _author(scope: Scope) -> Author | None:
    """Return the author of what a call changes; None for a call that changes nothing."""
    # Whoever opens the address of a code logs in by it.
    if scope["method"] in HARMLESS and scope["path"] != _LOGIN:
        return None
    caller: Caller | None = scope["state"].get("caller")
    if caller is None:
        return Author(scope)
    return Author(scope, caller.user_id, caller.username, caller.access_token_id, caller.allocation_id)


def _is_open(method: str, path: str) -> bool:
    is_below = path.startswith(_OPEN_BELOW) or (path.startswith(_SHARED) and path.count("/") == 2)
    return (method, path) in _OPEN or (method in HARMLESS and is_below)


def _refusal(scope: Scope, error: ApiError) -> Response:
    """Return the response to a refused call: a browser without a login is redirected to the login page."""
    if isinstance(error, UnauthenticatedError) and wants_page(scope):
        query = scope["query_string"].decode("latin-1")
        target = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"/signin?next={quote(target, safe='')}", status_code=303)
    return error_reply(scope["path"], error)


def _token(headers: Headers) -> tuple[bool, str]:
    """Return whether the token is in a header, not in a cookie, and the token; empty for none."""
    for name in ("authorization", "grpc-metadata-x-allocation-token"):
        value = headers.get(name)
        if value is not None:
            return True, _bearer(value)
    # Browsers send the cookies of all ports of this host. Malformed cookies of other programs must not hide the
    # master's own, as they do in the standard library's parser.
    return False, cookie_parser(headers.get("cookie", "")).get("auth", "")


def _bearer(value: str) -> str:
    scheme, _, token = value.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthenticatedError("invalid credentials")
    return token.strip()
