"""The master's own log, files and settings."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import PermissionDeniedError
from det_keras.master.pruning import Pruning
from det_keras.master.server.calls import CallerDep, FollowDep, MasterDep, body
from det_keras.master.server.responses import reply, result_line, stream_reply
from det_keras.master.tasks.scheduling import POOL
from det_keras.master.wire import Message
from det_keras.protocol.values import now, timestamp

router = APIRouter(prefix="/api/v1/master")

_LOOK_AGAIN_S = 0.5
# A hundred years.
_Days = Annotated[int, Field(ge=0, le=36_525)]
# The beginning of an entry, `2026-01-02 03:04:05,678 INFO: ...`. Other lines continue the entry before.
_BEGINNING = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) .*?\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b"
)


@router.get("/logs")
def logs(
    master: MasterDep,
    follow: FollowDep,
    offset: Annotated[
        int, Query(description="Index of the first line; a negative value counts from the end.")
    ] = 0,
    limit: Annotated[int, Query(ge=0, description="Number of lines; 0 for all.")] = 0,
) -> Response:
    """Stream the master's own log; with `follow` also lines that are still to come."""
    return stream_reply(_lines(master, offset, limit, follow=follow))


@router.get("/usage")
def occupied(master: MasterDep) -> Response:
    """Return how many bytes each kind of files occupies, and how they become fewer. Not in Determined's API."""
    found = master.disk_usage.read()
    return reply(
        {
            "usage": [
                {"kind": one.kind, "bytes": one.size_bytes, "place": one.place, "advice": one.advice}
                for one in found
            ]
        }
    )


class PruneBody(Message):
    """What to delete; nothing but what is named."""

    log_days: _Days | None = None
    run_days: _Days | None = None
    audit_days: _Days | None = None
    environments: bool = False
    is_dry: bool = True


@router.post("/prune")
def prune(master: MasterDep, caller: CallerDep, request: Annotated[PruneBody, body(PruneBody)]) -> Response:
    """Delete old log lines, runs, environments and changes, or say what would be. Not in Determined's API."""
    if caller.is_task:
        raise PermissionDeniedError("a task may not delete what others need")
    if request.audit_days is not None:
        # Otherwise users could delete the traces of what they did.
        master.users.refuse_others(caller)
    pruning = Pruning(master.store, master.home)
    found = []
    if request.log_days is not None:
        found.append(pruning.logs(request.log_days, is_dry=request.is_dry))
    if request.run_days is not None:
        found.append(pruning.runs(request.run_days, is_dry=request.is_dry))
    if request.audit_days is not None:
        found.append(pruning.changes(request.audit_days, is_dry=request.is_dry))
    if request.environments:
        found.append(pruning.environments(is_dry=request.is_dry))
    return reply(
        {"pruned": [{"kind": one.kind, "count": one.count, "bytes": one.size_bytes} for one in found]}
    )


@router.get("/config")
def config(master: MasterDep) -> Response:
    """Return the settings that the master was started with."""
    place = {"type": "directory", "container_path": str(master.home.checkpoints)}
    pool = {"pool_name": POOL, "slots": master.pool.slot_count}
    return reply(
        {
            "config": {
                "url": master.identity.url,
                "home": str(master.home.root),
                "checkpoint_storage": place,
                "resource_pools": [pool],
                # What can never run is refused, or ends, instead of waiting for ever.
                "launch_error": True,
                "retention_policy": {"log_retention_days": master.log_retention_days},
            }
        }
    )


async def _lines(master: EmbeddedMaster, offset: int, limit: int, *, follow: bool) -> AsyncIterator[bytes]:
    path, sent, position = master.home.master_log, 0, 0
    entries, position = await anyio.to_thread.run_sync(_read, path, position)
    number = max(0, len(entries) + offset) if offset < 0 else offset
    entries = entries[number:]
    while True:
        for entry in entries:
            number += 1
            yield result_line({"logEntry": {"id": number, **entry}})
            sent += 1
            if limit and sent >= limit:
                return
        if not follow or master.notifier.is_closing:
            return
        # The log is a plain file: new lines cause no event, so it is polled.
        await anyio.sleep(_LOOK_AGAIN_S)
        entries, position = await anyio.to_thread.run_sync(_read, path, position)


def _read(path: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines after `position`, and the position after them."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < position:
                # It was rotated.
                position = 0
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return [], position
    whole = data[: data.rfind(b"\n") + 1]
    return [_entry(line) for line in whole.decode(errors="replace").splitlines()], position + len(whole)


def _entry(line: str) -> dict[str, Any]:
    found = _BEGINNING.match(line)
    if found is None:
        return {"message": line, "level": "LOG_LEVEL_UNSPECIFIED", "timestamp": timestamp(now())}
    time = datetime.strptime(f"{found[1]}.{found[2]}", "%Y-%m-%d %H:%M:%S.%f").astimezone(timezone.utc)
    return {"message": line, "level": f"LOG_LEVEL_{found[3]}", "timestamp": timestamp(time)}
