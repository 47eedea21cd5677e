"""Settings that clients keep for their users, such as the columns of Determined's own pages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from sqlalchemy import func, select
from starlette.responses import Response

from det_keras.master.database.models import UserSettingRow
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.server.calls import CallerDep, MasterDep, body
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1/users/setting")

#: Settings of one user.
MOST_SETTINGS = 1000
_LONGEST_NAME = 1000
_LONGEST_VALUE = 100_000


class Setting(Message):
    """A setting; without a value it is deleted."""

    key: Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)]
    storage_path: Annotated[str, Field(max_length=_LONGEST_NAME)] = ""
    value: Annotated[str, Field(max_length=_LONGEST_VALUE)] | None = None


class SettingsBody(Message):
    """Settings to keep; others stay as they are."""

    settings: Annotated[list[Setting], Field(max_length=MOST_SETTINGS)] = Field(default_factory=list)


@router.get("")
def settings(master: MasterDep, caller: CallerDep) -> Response:
    """List the settings of the caller."""
    query = select(UserSettingRow).where(UserSettingRow.user_id == caller.user_id)
    with master.store.reading() as session:
        rows = session.scalars(query.order_by(UserSettingRow.path, UserSettingRow.key)).all()
        found = [{"key": row.key, "storagePath": row.path, "value": row.value} for row in rows]
    return reply({"settings": found})


@router.post("")
def keep(
    master: MasterDep, caller: CallerDep, request: Annotated[SettingsBody, body(SettingsBody)]
) -> Response:
    """Keep settings of the caller."""
    with master.store.writing() as tx:
        for setting in request.settings:
            row = tx.get(UserSettingRow, (caller.user_id, setting.storage_path, setting.key))
            if setting.value is None:
                if row is not None:
                    tx.delete(row)
            elif row is None:
                tx.add(
                    UserSettingRow(
                        user_id=caller.user_id,
                        path=setting.storage_path,
                        key=setting.key,
                        value=setting.value,
                    )
                )
            else:
                row.value = setting.value
            tx.flush()
        count = tx.scalar(select(func.count()).where(UserSettingRow.user_id == caller.user_id)) or 0
        if count > MOST_SETTINGS:
            raise InvalidArgumentError(
                f"A user may have {MOST_SETTINGS:,} settings, these would be {count:,}."
            )
    return reply()


@router.post("/reset")
def reset(master: MasterDep, caller: CallerDep) -> Response:
    """Delete all settings of the caller."""
    with master.store.writing() as tx:
        for row in tx.scalars(select(UserSettingRow).where(UserSettingRow.user_id == caller.user_id)):
            tx.delete(row)
    return reply()
