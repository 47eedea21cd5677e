"""The page of who changed what."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest

router = APIRouter(include_in_schema=False)

_ENTRIES = 100
# On the page of a thing.
_LAST = 10


async def last_changes(rest: Rest, kind: str, object_id: int | str) -> list[dict[str, Any]]:
    """Return the latest entries about a thing that the caller may see."""
    answer = await rest.get("/audit", kind=kind, id=object_id, limit=_LAST)
    entries: list[dict[str, Any]] = answer["entries"]
    return entries


@router.get("/audit")
async def changes(
    request: Request,
    user: str = "",
    kind: str = "",
    id: str = "",  # noqa: A002 - a word of the address
    offset: int = 0,
) -> Response:
    """List who changed what, latest first.

    Args:
        request: the page's request.
        user: only what this user did.
        kind: only of these things.
        id: only of the thing of this kind with this number or name.
        offset: how many entries are skipped.
    """
    wanted = {"user": user, "kind": kind, "id": id if kind else ""}
    answer = await Rest(request).get("/audit", **wanted, offset=max(offset, 0), limit=_ENTRIES)
    shown = answer["pagination"]
    later = shown["offset"] + len(answer["entries"])
    return await page(
        request,
        "audit.html",
        entries=answer["entries"],
        total=shown["total"],
        wanted=wanted,
        older=f"/audit?{urlencode({**wanted, 'offset': later})}" if later < shown["total"] else None,
        newer=f"/audit?{urlencode({**wanted, 'offset': max(0, shown['offset'] - _ENTRIES)})}"
        if shown["offset"]
        else None,
    )
