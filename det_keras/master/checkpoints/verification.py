"""Which experiments are verified, and what was found: a copy of the first trial resumes and is compared with it.

`det_keras.master.services.verifier` starts the copies. What becomes of one never changes the experiment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from det_keras.master.database.lookups import config_of, find_experiment, find_trial
from det_keras.master.database.models import CheckpointRow, SettingRow, TrialRow, VerificationRow
from det_keras.master.database.notifier import DELETIONS, VERIFICATIONS
from det_keras.master.database.store import Transaction
from det_keras.master.tasks.logs import note
from det_keras.protocol.verification import HINT, verified_text

WAITING, RUNNING = "WAITING", "RUNNING"
EXACT, DIFFERENT, UNVERIFIED = "EXACT", "DIFFERENT", "UNVERIFIED"
OPEN = (WAITING, RUNNING)

ONCE, NEVER, ALWAYS = "once", "never", "always"
#: When experiments are verified whose configs do not say.
DEFAULTS = (ONCE, NEVER, ALWAYS)

_SETTING = "verify_resume"
# ``format`` in the metadata of the checkpoints that `context.fit` writes.
_FORMAT = "keras"


def set_default(tx: Transaction, default: str) -> None:
    """Set when experiments are verified whose configs do not say: one of `DEFAULTS`."""
    row = tx.get(SettingRow, _SETTING)
    if row is None:
        tx.add(SettingRow(name=_SETTING, value=default))
    elif row.value != default:
        row.value = default


def checkpoint_reported(tx: Transaction, second: CheckpointRow) -> None:
    """Request a verification if a checkpoint is the second of the first run of an experiment, and one is wanted."""
    if second.meta.get("format") != _FORMAT:
        return
    trial = find_trial(tx, second.trial_id)
    experiment = find_experiment(tx, trial.experiment_id)
    if experiment.is_unmanaged or tx.get(VerificationRow, experiment.id) is not None:
        return
    # Both of one process: a process that has resumed itself would be compared with its like.
    earlier = [row for row in _of_trial(tx, trial) if row.allocation_id == second.allocation_id]
    earlier = [row for row in earlier if row.uuid != second.uuid]
    if len(earlier) != 1 or earlier[0].steps_completed >= second.steps_completed:
        return
    first_trial = tx.scalar(select(func.min(TrialRow.id)).where(TrialRow.experiment_id == experiment.id))
    if trial.id != first_trial or not _is_wanted(tx, experiment.context, config_of(experiment)):
        return
    ends = {
        row.meta.get("phase"): row.uuid
        for row in _of_trial(tx, trial)
        if row.steps_completed <= earlier[0].steps_completed and row.uuid != earlier[0].uuid
    }
    tx.add(
        VerificationRow(
            experiment_id=experiment.id,
            trial_id=trial.id,
            state=WAITING,
            context=experiment.context,
            checkpoints=[*ends.values(), earlier[0].uuid],
            expected=second.uuid,
            first_batch=earlier[0].steps_completed,
            second_batch=second.steps_completed,
        )
    )
    tx.notify(VERIFICATIONS)


def settle(
    tx: Transaction, row: VerificationRow, state: str, *, differences: Sequence[str] = (), reason: str = ""
) -> None:
    """Record the result of a verification.

    Args:
        tx: stores it.
        row: the verification.
        state: ``EXACT``, ``DIFFERENT`` or ``UNVERIFIED``.
        differences: what differs.
        reason: why nothing was compared.
    """
    row.state, row.differences, row.reason, row.shares = state, list(differences), reason, []
    trial = find_trial(tx, row.trial_id)
    text = f"This script {_text(row)}" if state != UNVERIFIED else f"Resume {_text(row)}"
    if state == DIFFERENT:
        note(tx, trial.task_id, f"{text} {HINT}", "WARNING")
    else:
        note(tx, trial.task_id, f"{text}.")
    experiment = find_experiment(tx, row.experiment_id)
    if experiment.end_time is not None:
        # Its checkpoints were kept until now.
        experiment.is_pruning_due = True
        tx.notify(DELETIONS)


def copy_id(row: VerificationRow, attempt: int | None = None) -> str:
    """Return the name of a copy for the pool, in the place of an allocation's id.

    Args:
        row: the verification.
        attempt: number of the copy, from 1; None for the newest.
    """
    return f"verification-{row.experiment_id}.{attempt or row.attempts}"


def open_verifications(session: Session) -> Sequence[VerificationRow]:
    """Return the verifications without a result."""
    return session.scalars(select(VerificationRow).where(VerificationRow.state.in_(OPEN))).all()


def held_checkpoints(session: Session) -> set[str]:
    """Return the UUIDs of the checkpoints that are still needed for verifications."""
    return {uuid for row in open_verifications(session) for uuid in (*row.checkpoints, row.expected)}


def verification_shape(row: VerificationRow | None) -> dict[str, Any] | None:
    """Return a verification for the REST API; None for none."""
    if row is None:
        return None
    return {
        "state": row.state,
        "text": _text(row),
        "trialId": row.trial_id,
        "firstBatch": row.first_batch,
        "secondBatch": row.second_batch,
        "differences": list(row.differences),
    }


def _text(row: VerificationRow) -> str:
    if row.state == WAITING:
        return "will be verified when a slot is free"
    if row.state == RUNNING:
        return "is being verified"
    return (
        row.reason
        if row.state == UNVERIFIED
        else verified_text(row.differences, row.first_batch, row.second_batch)
    )


def _is_wanted(session: Session, context: str | None, config: Any) -> bool:
    setting = session.get(SettingRow, _SETTING)
    wanted = config.reproducibility.verify_resume or (NEVER if setting is None else setting.value)
    if wanted != ONCE or context is None:
        return bool(wanted != NEVER)
    known = select(VerificationRow.experiment_id).where(
        VerificationRow.context == context, VerificationRow.state != UNVERIFIED
    )
    return session.scalar(known.limit(1)) is None


def _of_trial(session: Session, trial: TrialRow) -> list[CheckpointRow]:
    """Return the checkpoints of a trial's trainings that can be read, oldest first."""
    rows = session.scalars(
        select(CheckpointRow)
        .where(CheckpointRow.trial_id == trial.id, CheckpointRow.state == "COMPLETED")
        .where(CheckpointRow.pending_deletion.is_(None))
        .order_by(CheckpointRow.steps_completed, CheckpointRow.report_time)
    )
    return [row for row in rows if _is_of_training(row.meta)]


def _is_of_training(metadata: Mapping[str, Any]) -> bool:
    return metadata.get("format") == _FORMAT
