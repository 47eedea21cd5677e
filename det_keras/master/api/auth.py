"""Who is there: the master introduces itself, users log in and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from sqlalchemy import ColumnElement, select
from starlette.responses import Response

from det_keras.master.api.calls import CallerDep, MasterDep, PageDep, body, paged
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import NotFoundError
from det_keras.master.models import UserRow
from det_keras.master.replies import reply
from det_keras.master.shapes.cluster import PROTOCOL_VERSION, master_shape, user_shape
from det_keras.master.wire import Message

__all__ = ["router"]

router = APIRouter()


class LoginBody(Message):
    """A name and a password."""

    username: str = ""
    password: str = ""
    is_hashed: bool = False


@router.get("/info")
async def info(master: MasterDep) -> Response:
    """Say which protocol is spoken; the first call of every client."""
    return reply(
        {
            "version": PROTOCOL_VERSION,
            "master_id": master.identity.master_id,
            "cluster_id": master.identity.cluster_id,
            "cluster_name": "",
            "telemetry": {"enabled": False},
            "sso_providers": None,
        }
    )


@router.get("/api/v1/master")
async def describe_master(master: MasterDep) -> Response:
    """Say the same in more words."""
    return reply(master_shape(master.identity))


@router.post("/api/v1/auth/login")
def login(master: MasterDep, request: Annotated[LoginBody, body(LoginBody)]) -> Response:
    """Exchange a password for a session token."""
    token, user = master.accounts.login(request.username, request.password, is_hashed=request.is_hashed)
    response = reply({"token": token, "user": user_shape(user)})
    response.set_cookie("auth", token, httponly=True, samesite="strict", max_age=7 * 24 * 3600)
    return response


@router.post("/api/v1/auth/logout")
def logout(master: MasterDep, caller: CallerDep) -> Response:
    """Make the caller's token worthless."""
    master.accounts.logout(caller)
    return reply()


@router.get("/api/v1/me")
def me(master: MasterDep, caller: CallerDep) -> Response:
    """Tell the caller who he is."""
    with master.store.reading() as session:
        user = session.get(UserRow, caller.user_id)
        assert user is not None
        return reply({"user": user_shape(user)})


@router.get("/api/v1/users")
def users(master: MasterDep, page: PageDep, active: bool | None = None) -> Response:
    """List the users."""
    with master.store.reading() as session:
        rows = session.scalars(select(UserRow).order_by(UserRow.id)).all()
        rows = [row for row in rows if active is None or row.active == active]
        return reply(paged("users", rows, page, lambda part: [user_shape(row) for row in part]))


@router.get("/api/v1/users/{user_id}")
def user(master: MasterDep, user_id: int) -> Response:
    """Describe a user by number."""
    return _user(master, UserRow.id == user_id, str(user_id))


@router.get("/api/v1/users/{username}/by-username")
def user_by_name(master: MasterDep, username: str) -> Response:
    """Describe a user by name."""
    return _user(master, UserRow.username == username, username)


def _user(master: EmbeddedMaster, condition: ColumnElement[bool], name: str) -> Response:
    with master.store.reading() as session:
        row = session.scalar(select(UserRow).where(condition))
        if row is None:
            raise NotFoundError(f"user '{name}' not found")
        return reply({"user": user_shape(row)})
