"""Calls of the protocol that this master does not serve: it says so, and names the call."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.master.errors import UnimplementedError

__all__ = ["router"]

router = APIRouter()


@router.api_route("/api/v1/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def unserved(request: Request, path: str) -> Response:
    """Refuse."""
    raise UnimplementedError(f"{request.method} /api/v1/{path} is not served by this master.")
