"""Information about the master; login and logout; links that need no login."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import RedirectResponse, Response

from det_keras.about import __version__
from det_keras.master.accounts import links
from det_keras.master.database.models import UserRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import ApiError, UnauthenticatedError
from det_keras.master.serializers.cluster import PROTOCOL_VERSION, master_shape, user_shape
from det_keras.master.server.browser import own_address
from det_keras.master.server.calls import CallerDep, MasterDep, body
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message
from det_keras.protocol.api.accounts import OWN_VERSION_KEY

router = APIRouter()


class LoginBody(Message):
    """A name and a password."""

    username: str = ""
    password: str = ""
    is_hashed: bool = False


class LinkBody(Message):
    """A link to make."""

    days: Annotated[int, Field(ge=1, le=links.MOST_DAYS)] | None = None


@router.get("/info")
async def info(master: MasterDep) -> Response:
    """Return the version of the protocol, and ours; the first call of every client."""
    return reply(
        {
            "version": PROTOCOL_VERSION,
            "master_id": master.identity.master_id,
            "cluster_id": master.identity.cluster_id,
            "cluster_name": "",
            "telemetry": {"enabled": False},
            "sso_providers": None,
            OWN_VERSION_KEY: __version__,
        }
    )


@router.get("/api/v1/master")
async def describe_master(master: MasterDep) -> Response:
    """Return the version, the cluster's id and its settings."""
    return reply(master_shape(master.identity))


@router.post("/api/v1/auth/login")
async def login(master: MasterDep, call: Request, request: Annotated[LoginBody, body(LoginBody)]) -> Response:
    """Exchange a password for a session token."""
    address = "" if call.client is None else call.client.host
    token, user = await master.login_attempts.run(
        request.username,
        address,
        lambda: master.accounts.login(request.username, request.password, is_hashed=request.is_hashed),
    )
    response = reply({"token": token, "user": user_shape(user)})
    _set_cookie(master, response, token)
    return response


@router.post("/api/v1/auth/web-code")
def web_code(master: MasterDep, caller: CallerDep) -> Response:
    """Return an address that logs a browser in as the caller, once. Not part of the original's protocol."""
    return reply({"url": f"{master.identity.url}/login?code={master.accounts.web_code(caller)}"})


@router.get("/login")
def web_login(master: MasterDep, request: Request, code: str = "", next: str = "/") -> Response:  # noqa: A002
    """Log a browser in by the code of an address that `det web` printed, and redirect it to `next`."""
    response = RedirectResponse(own_address(next), status_code=303)
    try:
        token = master.accounts.redeem(code)
    except UnauthenticatedError:
        if _is_logged_in(master, request):
            return response
        raise UnauthenticatedError(
            "This address logs in once, within ten minutes. `det web` prints another address."
        ) from None
    _set_cookie(master, response, token)
    # The code is used up, but other sites should still not see it.
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


@router.post("/api/v1/auth/logout")
def logout(master: MasterDep, caller: CallerDep) -> Response:
    """Revoke the caller's token."""
    master.accounts.logout(caller)
    return reply()


def _is_logged_in(master: EmbeddedMaster, request: Request) -> bool:
    try:
        master.accounts.caller(request.cookies.get("auth", ""))
    except ApiError:
        return False
    return True


def _set_cookie(master: EmbeddedMaster, response: Response, token: str) -> None:
    is_secure = master.identity.url.startswith("https:")
    response.set_cookie(
        "auth", token, httponly=True, samesite="strict", secure=is_secure, max_age=7 * 24 * 3600
    )


@router.get("/api/v1/me")
def me(master: MasterDep, caller: CallerDep) -> Response:
    """Return the caller's user."""
    with master.store.reading() as session:
        user = session.get(UserRow, caller.user_id)
        assert user is not None
        return reply({"user": user_shape(user)})


@router.get("/api/v1/experiments/{experiment_id}/links")
def shared_links(master: MasterDep, caller: CallerDep, experiment_id: int) -> Response:
    """List the links to an experiment's report that need no login; for its owner and administrators."""
    found = master.shared_links.listed(caller, experiment_id)
    return reply({"links": found, "isAllowed": master.shared_links.is_allowed})


@router.post("/api/v1/experiments/{experiment_id}/links")
def share(
    master: MasterDep, caller: CallerDep, experiment_id: int, request: Annotated[LinkBody, body(LinkBody)]
) -> Response:
    """Make a link to an experiment's report that needs no login; only this answer has it. It may end after `days`."""
    token, link = master.shared_links.make(caller, experiment_id, request.days)
    path = f"/shared/{token}"
    return reply({"link": link, "path": path, "url": f"{master.identity.url}{path}"})


@router.delete("/api/v1/experiments/{experiment_id}/links")
def unshare(master: MasterDep, caller: CallerDep, experiment_id: int) -> Response:
    """Revoke all links to an experiment's report."""
    return reply({"revoked": master.shared_links.revoke(caller, experiment_id)})


@router.delete("/api/v1/experiments/{experiment_id}/links/{link_id}")
def revoke(master: MasterDep, caller: CallerDep, experiment_id: int, link_id: int) -> Response:
    """Revoke a link to an experiment's report."""
    return reply({"revoked": master.shared_links.revoke(caller, experiment_id, link_id)})
