"""Users: list, create and change; the views of pages that they saved."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from pydantic.alias_generators import to_camel
from sqlalchemy import ColumnElement, select
from starlette.responses import Response

from det_keras.master.accounts import views
from det_keras.master.accounts.users import UserChanges
from det_keras.master.database.models import UserRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import ApiError, InvalidArgumentError, NotFoundError
from det_keras.master.serializers.cluster import user_shape
from det_keras.master.server import unserved
from det_keras.master.server.calls import CallerDep, MasterDep, PageDep, body, paged
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message

router = APIRouter()


class PatchBody(Message):
    """Changes of a user; absent fields stay as they are."""

    username: str | None = None
    display_name: Annotated[str, Field(max_length=255)] | None = None
    admin: bool | None = None
    active: bool | None = None
    password: str | None = None
    is_hashed: bool = False


class ManyBody(Message):
    """Users, and whether they may log in."""

    user_ids: list[int] = Field(default_factory=list)
    activate: bool
    filters: dict[str, Any] | None = None


class NewUser(Message):
    """A user to create."""

    without_effect = frozenset({"id", "lastAuthAt", "modifiedAt", "remote"})

    username: str = ""
    display_name: Annotated[str, Field(max_length=255)] | None = None
    admin: bool = False
    active: bool = True


class CreateBody(Message):
    """A user to create, and the password."""

    user: NewUser = Field(default_factory=NewUser)
    password: str = ""
    is_hashed: bool = False


class ViewBody(Message):
    """A view to save."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    address: Annotated[str, Field(max_length=views.LONGEST_ADDRESS)]
    is_shared: bool = False


@router.get("/api/v1/views")
def saved_views(master: MasterDep, caller: CallerDep) -> Response:
    """List the views of pages that the caller saved, and those that others share, by name."""
    with master.store.reading() as session:
        return reply({"views": views.shapes(session, caller)})


@router.put("/api/v1/views")
def save_view(master: MasterDep, caller: CallerDep, request: Annotated[ViewBody, body(ViewBody)]) -> Response:
    """Save a view of a page; one of the same name of the caller is replaced."""
    with master.store.writing() as tx:
        view_id = views.save(
            tx, caller, name=request.name, address=request.address, is_shared=request.is_shared
        )
        return reply({"id": view_id})


@router.delete("/api/v1/views/{view_id}")
def delete_view(master: MasterDep, caller: CallerDep, view_id: int) -> Response:
    """Delete a view of the caller."""
    with master.store.writing() as tx:
        views.delete(tx, caller, view_id)
    return reply()


@router.get("/api/v1/users")
def users(
    master: MasterDep,
    page: PageDep,
    active: bool | None = None,
    admin: bool | None = None,
    name: Annotated[str, Query(description="Part of a name, in upper or lower case.")] = "",
) -> Response:
    """List the users: only active or inactive ones, only administrators or others, only those with a name."""
    with master.store.reading() as session:
        rows = session.scalars(select(UserRow).order_by(UserRow.id)).all()
        rows = [row for row in rows if active in (None, row.active) and admin in (None, row.admin)]
        rows = [row for row in rows if name.lower() in f"{row.username} {row.display_name}".lower()]
        return reply(paged("users", rows, page, lambda part: [user_shape(row) for row in part]))


@router.post("/api/v1/users")
def create(
    master: MasterDep, caller: CallerDep, request: Annotated[CreateBody, body(CreateBody)]
) -> Response:
    """Create a user."""
    wanted = UserChanges(**request.user.model_dump(), password=request.password, is_hashed=request.is_hashed)
    user_id = master.users.create(caller, wanted)
    return _user(master, UserRow.id == user_id, str(user_id))


@router.patch("/api/v1/users")
def change_many(
    master: MasterDep, caller: CallerDep, request: Annotated[ManyBody, body(ManyBody)]
) -> Response:
    """Activate or deactivate users; one at which it fails holds back no other."""
    if request.filters is not None:
        raise InvalidArgumentError("`filters` are not supported: name the users by `userIds`.")
    results = []
    for user_id in dict.fromkeys(request.user_ids):
        try:
            master.users.change(caller, user_id, UserChanges(active=request.activate))
            results.append({"id": user_id, "error": ""})
        except ApiError as error:
            results.append({"id": user_id, "error": str(error)})
    return reply({"results": results})


@router.patch("/api/v1/users/assignments")
def assign_groups() -> Response:
    """Refuse to put users into groups, which this master has not."""
    raise unserved.refusal("PATCH", "users/assignments")


@router.patch("/api/v1/users/{user_id}")
def change(
    master: MasterDep, caller: CallerDep, user_id: int, request: Annotated[PatchBody, body(PatchBody)]
) -> Response:
    """Change a user."""
    changes = UserChanges(**request.model_dump())
    if changes == UserChanges(is_hashed=changes.is_hashed):
        # Such as `{"user": {"admin": true}}`: an answer of 200 would say that it was done.
        names = ", ".join(f"`{to_camel(name)}`" for name in PatchBody.model_fields if name != "is_hashed")
        raise InvalidArgumentError(f"The body changes nothing of the user. It may have {names}.")
    master.users.change(caller, user_id, changes)
    return _user(master, UserRow.id == user_id, str(user_id))


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
