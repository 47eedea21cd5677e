"""All pages, their static files, and the stream of events for open pages."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse

from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import NotFoundError
from det_keras.master.server.browser import own_address
from det_keras.master.server.calls import MasterDep
from det_keras.master.web import cluster, compare, experiments, plots, report, trials
from det_keras.master.web.rendering import STATIC, page, plotly_script

__all__ = ["router"]

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_OF_THE_ORIGINAL = re.compile(r"experiments/(\d+)(?:/trials/(\d+))?(?:/\w*)?$", re.ASCII)
_LOOK_S = 0.25
# Proxies and browsers close idle connections, so a comment is sent at this period.
_SILENCE_S = 15.0

router = APIRouter(include_in_schema=False)
for pages in (experiments, trials, compare, cluster, plots, report):
    router.include_router(pages.router)


@router.get("/signin")
async def sign_in(request: Request, next: str = "/") -> Response:  # noqa: A002 - a word of the address
    """Show the login page."""
    return await page(request, "signin.html", target=own_address(next))


@router.get("/det/{rest:path}")
def address_of_the_original(rest: str) -> Response:
    """Redirect addresses of Determined's own pages to the pages of this master."""
    found = _OF_THE_ORIGINAL.match(rest)
    if found is None:
        raise NotFoundError(f"There is no page {rest!r}.")
    experiment, trial = found.groups()
    return RedirectResponse(f"/trials/{trial}" if trial else f"/experiments/{experiment}", status_code=303)


@router.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """Return a file that pages load; with a version in its address it may be cached for ever."""
    path = _static_files().get(name)
    if path is None:
        raise NotFoundError("There is no such file.")
    caching = "public, max-age=31536000, immutable" if request.query_params.get("v") else "no-cache"
    mark = f'"{path.stat().st_mtime_ns:x}"'
    headers = {"Cache-Control": caching, "ETag": mark}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return FileResponse(path, media_type=_KINDS[path.suffix], headers=headers)


@router.get("/live")
async def live(master: MasterDep) -> Response:
    """Notify a page of every committed change, by server-sent events; the page then requests itself again."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_news(master), media_type="text/event-stream", headers=headers)


@functools.cache
def _static_files() -> dict[str, Path]:
    """Return all files by name; names from requests are never used as paths."""
    own = {path.name: path for path in STATIC.iterdir() if path.suffix in _KINDS}
    return {**own, "plotly.min.js": plotly_script()}


async def _news(master: EmbeddedMaster) -> AsyncIterator[str]:
    # After a restart of the master this makes a page that reconnects refresh at once.
    yield "retry: 1000\nevent: hello\ndata: {}\n\n"
    seen, silent_s = master.store.changes, 0.0
    while not master.notifier.is_closing:
        await asyncio.sleep(_LOOK_S)
        silent_s += _LOOK_S
        if master.store.changes != seen:
            seen, silent_s = master.store.changes, 0.0
            yield "event: news\ndata: {}\n\n"
        elif silent_s >= _SILENCE_S:
            silent_s = 0.0
            yield ": keep-alive\n\n"
