"""Calls of Determined's API that this master does not serve: status 501 with the name of the call."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.master.errors import UnimplementedError

router = APIRouter()


@router.api_route("/api/v1/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def unserved(request: Request, path: str) -> Response:
    """Refuse a call that is not served."""
    raise UnimplementedError(f"{request.method} /api/v1/{path} is not served by this master.")
