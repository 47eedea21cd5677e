"""What trials say that they use: checkpoints, and versions of models."""

from __future__ import annotations

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from det_keras.master.checkpoints.records import find_checkpoint
from det_keras.master.database.lookups import find_trial
from det_keras.master.database.models import TrialSourceRow
from det_keras.master.database.store import Transaction
from det_keras.master.registry.versions import find_version

#: Why a trial uses a checkpoint.
KINDS = ("INFERENCE", "FINE_TUNING")


def report(
    tx: Transaction, trial_id: int, checkpoint_uuid: str, kind: str, version: tuple[int, int] | None
) -> None:
    """Record that a trial uses a checkpoint; a repeated report replaces the earlier one.

    Args:
        tx: the transaction.
        trial_id: number of the trial.
        checkpoint_uuid: what it uses.
        kind: one of `KINDS`.
        version: numbers of a model and of its version which the checkpoint is; None if the trial names none.

    Raises:
        NotFoundError: the trial, the checkpoint or the version does not exist.
    """
    find_trial(tx, trial_id)
    uuid = find_checkpoint(tx, checkpoint_uuid).uuid
    model_id, number = version or (None, None)
    if number is not None:
        find_version(tx, str(model_id), number)
    known = (TrialSourceRow.trial_id == trial_id) & (TrialSourceRow.checkpoint_uuid == uuid)
    row = tx.scalar(select(TrialSourceRow).where(known))
    if row is None:
        row = TrialSourceRow(trial_id=trial_id, checkpoint_uuid=uuid)
        tx.add(row)
    row.kind, row.model_id, row.model_version = kind, model_id, number


def users_of_checkpoint(session: Session, uuid: str, kind: str | None) -> list[int]:
    """Return the numbers of the trials that use a checkpoint.

    Args:
        session: to read with.
        uuid: UUID of the checkpoint.
        kind: why they use it; None for any reason.
    """
    query = select(TrialSourceRow.trial_id).where(TrialSourceRow.checkpoint_uuid == uuid)
    return list(session.scalars(_of_kind(query, kind)))


def users_of_version(session: Session, model_id: int, version: int, kind: str | None) -> list[int]:
    """Return the numbers of the trials that use a version of a model; see `users_of_checkpoint`."""
    of_version = (TrialSourceRow.model_id == model_id) & (TrialSourceRow.model_version == version)
    return list(session.scalars(_of_kind(select(TrialSourceRow.trial_id).where(of_version), kind)))


def _of_kind(query: Select[int], kind: str | None) -> Select[int]:
    chosen = query if kind is None else query.where(TrialSourceRow.kind == kind)
    return chosen.order_by(TrialSourceRow.trial_id)
