"""Where experiments, trials and jobs come from, as clients and training processes report it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from det_keras.master.database.models import ProvenanceRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import InvalidArgumentError

# As `det_keras.provenance.capture.MOST_RECORD_BYTES`, which clients keep to.
_MOST_BYTES = 1 << 20
_MODEL = "model"


def subject_of(kind: str, number: int | str) -> str:
    """Return the name of a subject, such as ``trial:12``.

    Args:
        kind: ``experiment``, ``trial``, ``model`` or ``task``.
        number: its number, that of the model's trial, or the id of a task.
    """
    return f"{kind}:{number}"


def check_record(record: Mapping[str, Any]) -> None:
    """Check the size of a record before it is stored.

    Raises:
        InvalidArgumentError: it is too long.
    """
    size = len(json.dumps(record))
    if size > _MOST_BYTES:
        raise InvalidArgumentError(f"`provenance` may have {_MOST_BYTES} bytes, received {size}.")


def store_record(tx: Transaction, subject: str, record: Mapping[str, Any]) -> None:
    """Store a record; it replaces an earlier one, and an empty one is not stored.

    Args:
        tx: stores it.
        subject: see `subject_of`.
        record: plain JSON values.
    """
    if not record:
        return
    row = tx.get(ProvenanceRow, subject)
    if row is None:
        tx.add(ProvenanceRow(subject=subject, record=dict(record)))
    else:
        row.record = dict(record)


def check_trial_record(record: Mapping[str, Any]) -> None:
    """Check a record of a trial before it is stored.

    Raises:
        InvalidArgumentError: it is too long, or its ``model`` is not an object.
    """
    check_record(record)
    if not isinstance(record.get(_MODEL, {}), Mapping):
        raise InvalidArgumentError(
            f"`provenance.model` has to be an object, received {type(record[_MODEL]).__name__}."
        )


def store_trial_record(tx: Transaction, trial_id: int, record: Mapping[str, Any]) -> None:
    """Store what a run of a trial reports: where it runs, its ``model``, or both; see `store_record`.

    A training process reports both on its own, in any order, so neither replaces the other: the model has a row of its
    own.
    """
    place, model = subjects_of_trial(trial_id)
    store_record(tx, place, {name: value for name, value in record.items() if name != _MODEL})
    store_record(tx, model, record.get(_MODEL, {}))


def read_trial_record(session: Session, trial_id: int) -> dict[str, Any] | None:
    """Return the record of a trial, with its ``model`` if it was reported; None if there is none."""
    place, model = (read_record(session, subject) for subject in subjects_of_trial(trial_id))
    return place if model is None else {**(place or {}), _MODEL: model}


def subjects_of_trial(trial_id: int) -> tuple[str, str]:
    """Return the subjects of a trial's records: where it runs, and its model."""
    return subject_of("trial", trial_id), subject_of(_MODEL, trial_id)


def read_record(session: Session, subject: str) -> dict[str, Any] | None:
    """Return the record of a subject; None if there is none."""
    row = session.get(ProvenanceRow, subject)
    return None if row is None else row.record


def delete_records(tx: Transaction, subjects: Iterable[str]) -> None:
    """Delete the records of subjects."""
    tx.execute(delete(ProvenanceRow).where(ProvenanceRow.subject.in_(list(subjects))))
