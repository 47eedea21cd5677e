"""All pages, their static files, and the stream of events for open pages."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import NotFoundError
from det_keras.master.server.browser import own_address
from det_keras.master.server.calls import MasterDep, open_stream
from det_keras.master.server.watched import Watched
from det_keras.master.web import (
    cluster,
    compare,
    experiments,
    fork,
    live_parts,
    log,
    report,
    search,
    tables,
    trials,
    wall,
)
from det_keras.master.web.rendering import page, static_files
from det_keras.master.web.teams import audit, models, webhooks, workspaces

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_OF_THE_ORIGINAL = re.compile(r"experiments/(\d+)(?:/trials/(\d+))?(?:/\w*)?$", re.ASCII)
_LOOK_S = 0.25
# Proxies and browsers close idle connections, so a comment is sent at this period.
_SILENCE_S = 15.0


async def _note_position(request: Request, master: MasterDep) -> None:
    """Note which changes a page contains, before it reads anything; its stream of events begins after them.

    Whoever opens a page may look at the table of all trials next.
    """
    request.state.position = master.store.feed.position
    master.trial_rows.prepare()


router = APIRouter(include_in_schema=False, dependencies=[Depends(_note_position)])
_PAGES = (
    fork,
    experiments,
    search,
    trials,
    workspaces,
    models,
    audit,
    webhooks,
    compare,
    cluster,
    tables,
    wall,
    report,
    log,
    live_parts,
)
for pages in _PAGES:
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
    """Return a file that pages load; with a version in its address it may be cached forever."""
    path = static_files().get(name)
    if path is None:
        raise NotFoundError("There is no such file.")
    caching = "public, max-age=31536000, immutable" if request.query_params.get("v") else "no-cache"
    mark = f'"{path.stat().st_mtime_ns:x}"'
    headers = {"Cache-Control": caching, "ETag": mark}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    # As a whole, so that it is compressed.
    return Response(path.read_bytes(), media_type=_KINDS[path.suffix], headers=headers)


@router.get("/live", dependencies=[Depends(open_stream)])
async def live(
    master: MasterDep,
    of: Annotated[list[str], Query()] = [],  # noqa: B006
    since: int | None = None,
) -> Response:
    """Notify a page of the changes of what it shows, by server-sent events; the page then requests itself again.

    Args:
        master: the master.
        of: subjects such as ``experiment:7``, ``trial:12`` or ``task:UUID``, or kinds of subjects such as ``task``.
        since: position of the changes that the page contains; by default all so far.
    """
    position = master.store.feed.position if since is None else since
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        _news(master, Watched(of), position), media_type="text/event-stream", headers=headers
    )


async def _news(master: EmbeddedMaster, watched: Watched, position: int) -> AsyncIterator[str]:
    # After a restart of the master this makes a page that reconnects refresh at once.
    yield "retry: 1000\nevent: hello\ndata: {}\n\n"
    silent_s = 0.0
    while not master.notifier.is_closing:
        position, changed = master.store.feed.since(position)
        includes = functools.partial(watched.includes, master.store, changed)
        if bool(changed) and await anyio.to_thread.run_sync(includes):
            silent_s = 0.0
            yield "event: news\ndata: {}\n\n"
        elif silent_s >= _SILENCE_S:
            silent_s = 0.0
            yield ": keep-alive\n\n"
        await asyncio.sleep(_LOOK_S)
        silent_s += _LOOK_S
