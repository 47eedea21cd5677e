"""What a browser asks for, and where it may be sent."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

__all__ = ["own_address", "wants_page"]


def wants_page(scope: Scope) -> bool:
    """Tell whether a browser asks for a page, not a program for data."""
    if scope["method"] != "GET" or scope["path"].startswith("/api/"):
        return False
    return "text/html" in Headers(scope=scope).get("accept", "")


def own_address(text: str) -> str:
    """Return an address below this master, or the first page in place of one that leads elsewhere."""
    # `//elsewhere` is an address of another host, and browsers read `\\` as `/`.
    is_ours = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_ours else "/"
