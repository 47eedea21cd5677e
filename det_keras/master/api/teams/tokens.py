"""Access tokens: create, list, describe anew and revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from det_keras.master.accounts.access_tokens import LONGEST_DESCRIPTION, Wanted
from det_keras.master.server.calls import CallerDep, MasterDep, PageDep, body, choice, paged
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1/tokens")

_Description = Annotated[str, Field(max_length=LONGEST_DESCRIPTION)]
_ORDERS = {
    "UNSPECIFIED": "id",
    "USER_ID": "userId",
    "EXPIRY": "expiry",
    "CREATED_AT": "createdAt",
    "TOKEN_TYPE": "tokenType",
    "REVOKED": "revoked",
    "DESCRIPTION": "description",
}


class CreateBody(Message):
    """A token to create."""

    user_id: int = 0
    lifespan: Annotated[str, Field(max_length=64)] = ""
    description: _Description = ""


class PatchBody(Message):
    """Changes of a token; absent fields stay as they are."""

    description: _Description | None = None
    set_revoked: bool = False


@router.post("")
def create(
    master: MasterDep, caller: CallerDep, request: Annotated[CreateBody, body(CreateBody)]
) -> Response:
    """Create an access token for a user. Only this answer has it."""
    token, known = master.access_tokens.create(caller, request.user_id, request.lifespan, request.description)
    return reply({"token": token, "tokenId": known["id"]})


@router.get("")
def listing(
    master: MasterDep,
    caller: CallerDep,
    page: PageDep,
    username: Annotated[str, Query(description="Only tokens of this user.")] = "",
    token_ids: Annotated[list[int], Query(alias="tokenIds", description="Only these, in any state.")] = [],  # noqa: B006 - FastAPI copies it
    show_inactive: Annotated[
        bool, Query(alias="showInactive", description="Also those that are revoked or have ended.")
    ] = False,
    sort_by: Annotated[str, Query(alias="sortBy")] = "SORT_BY_UNSPECIFIED",
) -> Response:
    """List access tokens, without the tokens themselves: one's own, for administrators those of all users."""
    order = _ORDERS[choice(sort_by, "SORT_BY_", list(_ORDERS))]
    found = master.access_tokens.listed(caller, Wanted(username, token_ids, show_inactive))
    # Those without an end are last.
    found.sort(
        key=lambda one: (one[order] is None, one[order] or "", one["id"]), reverse=bool(page.is_descending)
    )
    return reply(paged("tokenInfo", found, page, list))


@router.patch("/{token_id}")
def change(
    master: MasterDep, caller: CallerDep, token_id: int, request: Annotated[PatchBody, body(PatchBody)]
) -> Response:
    """Describe a token anew, or revoke it."""
    known = master.access_tokens.change(
        caller, token_id, description=request.description, is_revoked=request.set_revoked
    )
    return reply({"tokenInfo": known})
