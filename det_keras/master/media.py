"""The records of media: reporting, listing, and where the files are. The files are in the storages of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from det_keras.master.database.models import MediaRow, StorageRow, TrialRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import InvalidArgumentError, NotFoundError
from det_keras.protocol.media import (
    EXTENSIONS,
    LONGEST_CAPTION,
    LONGEST_NAME,
    MOST_ITEM_BYTES,
    MOST_ITEMS,
    MOST_TRIAL_BYTES,
    is_file_of,
)
from det_keras.protocol.values import now
from det_keras.storage.names import media_prefix


@dataclass(frozen=True)
class MediaReport:
    """A report of an item whose file is in the storage; see `MediaRow`."""

    kind: str
    name: str
    step: int
    caption: str
    size: int
    file: str
    storage_id: int | None
    time: datetime | None


@dataclass(frozen=True)
class MediaGroup:
    """The items of a trial with the same kind and name.

    Attributes:
        kind: their kind.
        name: their name.
        count: number of items.
        size: of their files, in bytes.
        last_step: the greatest step.
        time: the time of the newest report.
    """

    kind: str
    name: str
    count: int
    size: int
    last_step: int
    time: datetime


def report_media(tx: Transaction, trial: TrialRow, report: MediaReport) -> None:
    """Record an item; it replaces one of the same kind, name and step.

    Raises:
        InvalidArgumentError: the report is malformed, or the trial may not have this item as well.
    """
    _check(report)
    same = (
        (MediaRow.trial_id == trial.id) & (MediaRow.kind == report.kind) & (MediaRow.name == report.name),
        MediaRow.step == report.step,
    )
    row = tx.scalar(select(MediaRow).where(*same))
    totals = select(func.count(), func.coalesce(func.sum(MediaRow.size), 0)).where(
        MediaRow.trial_id == trial.id
    )
    count, size = tx.execute(totals).one()
    size += report.size - (0 if row is None else row.size)
    if size > MOST_TRIAL_BYTES or (row is None and count >= MOST_ITEMS):
        raise InvalidArgumentError(
            f"A trial may have {MOST_ITEMS:,} media of {MOST_TRIAL_BYTES >> 30} GiB in all."
        )
    known_storage = report.storage_id is not None and tx.get(StorageRow, report.storage_id) is not None
    if row is None:
        row = MediaRow(trial_id=trial.id, kind=report.kind, name=report.name, step=report.step)
        tx.add(row)
    row.storage_id = report.storage_id if known_storage else None
    row.caption, row.size, row.file = report.caption, report.size, report.file
    row.report_time = report.time or now()


def find_media(session: Session, trial_id: int, media_id: int) -> MediaRow:
    """Return an item of a trial.

    Raises:
        NotFoundError: it does not exist.
    """
    row = session.get(MediaRow, media_id)
    if row is None or row.trial_id != trial_id:
        raise NotFoundError(f"trial '{trial_id}' has no media '{media_id}'")
    return row


def groups(session: Session, trial_id: int) -> list[MediaGroup]:
    """Return a trial's media by kind and name, in the order of the names."""
    query = (
        select(
            MediaRow.kind,
            MediaRow.name,
            func.count(),
            func.sum(MediaRow.size),
            func.max(MediaRow.step),
            func.max(MediaRow.report_time),
        )
        .where(MediaRow.trial_id == trial_id)
        .group_by(MediaRow.kind, MediaRow.name)
    )
    found = [
        MediaGroup(kind, name, count, int(size), step, time)
        for kind, name, count, size, step, time in session.execute(query)
    ]
    # Not by the database: the kinds of databases sort texts differently.
    return sorted(found, key=lambda group: (group.name, group.kind))


def folder_of(cluster_id: str, trial: TrialRow) -> str:
    """Return the prefix of a trial's files in their storage."""
    return media_prefix(cluster_id, trial.experiment_id, trial.id)


def _check(report: MediaReport) -> None:
    if report.kind not in EXTENSIONS:
        raise InvalidArgumentError(
            f"`kind` must be one of {', '.join(EXTENSIONS)}, received {report.kind!r}."
        )
    if not 0 < len(report.name) <= LONGEST_NAME or len(report.caption) > LONGEST_CAPTION:
        raise InvalidArgumentError(
            f"`name` must have 1 to {LONGEST_NAME} characters, and `caption` at most {LONGEST_CAPTION}."
        )
    if report.step < 0:
        raise InvalidArgumentError(f"`step` must not be negative, received {report.step}.")
    if not 0 <= report.size <= MOST_ITEM_BYTES:
        raise InvalidArgumentError(f"`size` must be 0 to {MOST_ITEM_BYTES} bytes, received {report.size}.")
    if not is_file_of(report.kind, report.file):
        raise InvalidArgumentError(f"{report.file!r} cannot be the file of an item of kind {report.kind!r}.")
