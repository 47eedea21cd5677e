"""Requests of browsers: whether they expect a page, and where they may be redirected."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

__all__ = ["own_address", "wants_page"]


def wants_page(scope: Scope) -> bool:
    """Return whether a request is a browser's request for a page, not a program's request for data."""
    if scope["method"] != "GET" or scope["path"].startswith("/api/"):
        return False
    return "text/html" in Headers(scope=scope).get("accept", "")


def own_address(text: str) -> str:
    """Return `text` if it is an address on this master, else the address of the first page."""
    # `//elsewhere` is an address on another host, and browsers treat `\\` as `/`.
    is_ours = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_ours else "/"
