"""Media of trials: report, list, and read their files.

Files are what a user's script made. They are served such that a browser executes nothing of them, whatever they
contain: with a media type that follows from the kind alone, as images or as downloads, and under a policy that allows
nothing.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query
from sqlalchemy import select
from starlette.responses import Response

from det_keras import storage
from det_keras.errors import ConfigError
from det_keras.master import media
from det_keras.master.checkpoints.records import storage_section
from det_keras.master.database.lookups import find_trial
from det_keras.master.database.models import MediaRow
from det_keras.master.errors import NotFoundError
from det_keras.master.server.calls import MasterDep, PageDep, body, paged
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message, from_timestamp
from det_keras.protocol.media import MEDIA_TYPES, download_name
from det_keras.protocol.values import timestamp

router = APIRouter(prefix="/api/v1/trials/{trial_id}/media")

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class MediaBody(Message):
    """An item whose file is stored."""

    kind: str
    name: str
    step: int
    caption: str = ""
    size: int
    file: str
    storage_id: int | None = None
    report_time: str | None = None


@router.post("")
def report(master: MasterDep, trial_id: int, request: Annotated[MediaBody, body(MediaBody)]) -> Response:
    """Record an item of media; it replaces one of the same kind, name and step."""
    sent = media.MediaReport(
        kind=request.kind,
        name=request.name,
        step=request.step,
        caption=request.caption,
        size=request.size,
        file=request.file,
        storage_id=request.storage_id,
        time=None if request.report_time is None else from_timestamp(request.report_time),
    )
    with master.store.writing() as tx:
        media.report_media(tx, find_trial(tx, trial_id), sent)
    return reply()


@router.get("")
def listing(
    master: MasterDep,
    trial_id: int,
    page: PageDep,
    name: Annotated[str | None, Query(description="Only media with this name.")] = None,
    kind: Annotated[str | None, Query(description="Only media of this kind, such as `image`.")] = None,
) -> Response:
    """List the media of a trial by step, and the folder of their files in the storage."""
    query = select(MediaRow).where(MediaRow.trial_id == trial_id)
    if name is not None:
        query = query.where(MediaRow.name == name)
    if kind is not None:
        query = query.where(MediaRow.kind == kind)
    order = (MediaRow.step, MediaRow.id)
    query = query.order_by(*(column.desc() for column in order) if page.is_descending else order)
    with master.store.reading() as session:
        folder = media.folder_of(master.identity.cluster_id, find_trial(session, trial_id))
        rows = session.scalars(query).all()
        return reply(
            {**paged("media", rows, page, lambda part: [_shape(row) for row in part]), "folder": folder}
        )


@router.get("/groups")
def groups(master: MasterDep, trial_id: int) -> Response:
    """Count the media of a trial by kind and name."""
    with master.store.reading() as session:
        find_trial(session, trial_id)
        found = media.groups(session, trial_id)
    shapes = [
        {
            "kind": group.kind,
            "name": group.name,
            "count": group.count,
            "size": str(group.size),
            "lastStep": str(group.last_step),
            "reportTime": timestamp(group.time),
        }
        for group in found
    ]
    return reply({"groups": shapes})


@router.get("/{media_id}/content")
def content(
    master: MasterDep,
    trial_id: int,
    media_id: int,
    version: Annotated[
        str, Query(alias="v", description="The item's `version`; the response may then be cached forever.")
    ] = "",
) -> Response:
    """Return the file of an item: an image, or a download."""
    with master.store.reading() as session:
        row = media.find_media(session, trial_id, media_id)
        section = storage_section(session, row)
        folder = media.folder_of(master.identity.cluster_id, find_trial(session, trial_id))
    try:
        found = storage.from_config(section).read_file(f"{folder}/{row.file}")
    except (OSError, ConfigError) as error:
        raise NotFoundError(f"The file of media {media_id} cannot be read: {error}") from error
    is_cached = bool(version) and version == _version(row)
    headers = {
        **_HEADERS,
        "Content-Disposition": _disposition(row),
        "Cache-Control": "private, max-age=31536000, immutable" if is_cached else "no-store",
    }
    return Response(found, media_type=MEDIA_TYPES[_extension(row)], headers=headers)


def _shape(row: MediaRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": row.kind,
        "name": row.name,
        "step": str(row.step),
        "caption": row.caption,
        "size": str(row.size),
        "file": row.file,
        "mediaType": MEDIA_TYPES[_extension(row)],
        "version": _version(row),
        "reportTime": timestamp(row.report_time),
    }


def _version(row: MediaRow) -> str:
    """Return what changes when the item is replaced."""
    return f"{round(row.report_time.timestamp() * 1e6):x}-{row.size:x}"


def _extension(row: MediaRow) -> str:
    return row.file.rpartition(".")[2]


def _disposition(row: MediaRow) -> str:
    extension = _extension(row)
    # Of a file, the caption is its own name.
    name = row.caption if row.kind == "file" and row.caption else download_name(row.name, row.step, extension)
    is_image = MEDIA_TYPES[extension].startswith("image/")
    # Everything but letters and digits is encoded, and with that separators of paths and of headers.
    return f"{'inline' if is_image else 'attachment'}; filename*=UTF-8''{quote(name, safe='')}"
