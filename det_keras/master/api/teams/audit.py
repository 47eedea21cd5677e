"""The record of who changed what. Not in Determined's API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from det_keras.master.accounts.audit import MOST_ENTRIES, Wanted
from det_keras.master.server.calls import CallerDep, MasterDep
from det_keras.master.server.responses import reply
from det_keras.master.wire import from_timestamp

router = APIRouter(prefix="/api/v1")

_DEFAULT_ENTRIES = 100
_MOST_SKIPPED = 1 << 40


@router.get("/audit")
def listing(
    master: MasterDep,
    caller: CallerDep,
    user: Annotated[str, Query(description="Only what this user did.")] = "",
    kind: Annotated[str, Query(description="Only of these things, such as `experiment` or `user`.")] = "",
    id: Annotated[  # noqa: A002 - the word of the protocol
        str, Query(description="Number or name of a thing of this kind, and of what belongs to it.")
    ] = "",
    since: Annotated[str, Query(description="Not before this time.")] = "",
    offset: Annotated[int, Query(ge=0, le=_MOST_SKIPPED, description="Entries to skip.")] = 0,
    limit: Annotated[
        int, Query(ge=0, le=MOST_ENTRIES, description="The most entries; 0 for none.")
    ] = _DEFAULT_ENTRIES,
) -> Response:
    """List who changed what, latest first: administrators see all, others their own deeds and things."""
    wanted = Wanted(user, kind, id, from_timestamp(since) if since else None)
    entries, total = master.audit_trail.listed(caller, wanted, offset, limit)
    part = {"offset": offset, "limit": limit, "total": total}
    return reply({"entries": entries, "pagination": part})
