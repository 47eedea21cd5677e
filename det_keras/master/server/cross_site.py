"""Refuses changes that a page of another site makes a browser send with its user's cookie."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from det_keras.master.accounts.auth import page_token
from det_keras.master.errors import PermissionDeniedError

__all__ = ["refuse_other_pages", "refuse_other_sites"]


def refuse_other_sites(headers: Headers, *, is_by_cookie: bool) -> None:
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


def refuse_other_pages(headers: Headers, token: str) -> None:
    """Refuse a change by cookie without the page's token, which nobody knows who cannot read our pages."""
    if not hmac.compare_digest(headers.get("x-csrf-token", "").encode(), page_token(token).encode()):
        raise PermissionDeniedError("A change by cookie needs the token of the page in `X-CSRF-Token`.")
