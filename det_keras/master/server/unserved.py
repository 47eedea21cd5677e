"""Calls of Determined's API that this master does not serve: status 501 with the name of the call, and what to use."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.master.errors import UnimplementedError

router = APIRouter()

_USERS = "Every user may use everything here, and administrators manage users: `det user`."
# What this master has instead, by the first word of the path.
_INSTEAD = {
    "config-policies": "`det template` gives configs their defaults.",
    "generic-tasks": "`det job run` runs any command.",
    "groups": _USERS,
    "notebooks": "Start Jupyter where you are: `det.experimental.client` reads experiments from any notebook.",
    "oauth2": "`det token` makes logins for programs.",
    "permissions": _USERS,
    "roles": _USERS,
    "shells": "`det job run` runs any command on the slots.",
    "users/assignments": _USERS,
}


@router.api_route("/api/v1/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def unserved(request: Request, path: str) -> Response:
    """Refuse a call that is not served."""
    raise refusal(request.method, path)


def refusal(method: str, path: str) -> UnimplementedError:
    """Return how a call is refused that is not served.

    Args:
        method: of the call.
        path: behind ``/api/v1/``.
    """
    sentence = f"{method} /api/v1/{path} is not served by this master."
    instead = _INSTEAD.get(path, _INSTEAD.get(path.split("/")[0]))
    return UnimplementedError(sentence if instead is None else f"{sentence} {instead}")
