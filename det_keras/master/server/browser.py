"""Requests of browsers: whether they expect a page, where they may be redirected, and which changes are refused.

A page of another site can make a browser send a change with the user's cookie.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from det_keras.master.accounts.auth import page_token
from det_keras.master.errors import PermissionDeniedError
from det_keras.master.wire import is_own_address


def wants_page(scope: Scope) -> bool:
    """Return whether a request is a browser's request for a page, not a program's request for data."""
    if scope["method"] != "GET" or scope["path"].startswith("/api/"):
        return False
    return "text/html" in Headers(scope=scope).get("accept", "")


def own_address(text: str) -> str:
    """Return `text` if it is an address on this master, else the address of the first page."""
    return text if is_own_address(text) else "/"


def refuse_other_sites(headers: Headers, *, is_by_cookie: bool) -> None:
    """Refuse a request that a page of another site made the browser send: browsers add cookies automatically.

    Other ports of this machine are other sites too, since another account's server may listen there. Browsers name the
    origin of a request in a header; a request without one may not use the cookie.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        is_own = site in ("same-origin", "none")
    elif origin is not None:
        is_own = urlsplit(origin).netloc == headers.get("host")
    else:
        is_own = not is_by_cookie
    if not is_own:
        raise PermissionDeniedError("A page of another site may not make this call with your login.")


def refuse_other_pages(headers: Headers, token: str) -> None:
    """Refuse a change by cookie without the page's token, which only the master's own pages contain."""
    if not hmac.compare_digest(headers.get("x-csrf-token", "").encode(), page_token(token).encode()):
        raise PermissionDeniedError("A change by cookie requires the token of the page in `X-CSRF-Token`.")
