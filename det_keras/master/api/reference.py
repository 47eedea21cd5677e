"""What is served, for people and for programs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from det_keras.master.server.responses import reply
from det_keras.master.web.reference import reference_page

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def page(request: Request) -> Response:
    """Show every call."""
    # Nothing of another origin is loaded, and no script is run, whatever a description may contain.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    headers = {"Content-Security-Policy": policy}
    return HTMLResponse(reference_page(request.app.state.describe()), headers=headers)


@router.get("/openapi.json")
def description(request: Request) -> Response:
    """Return the description of every call."""
    return reply(request.app.state.describe())
