"""The records of checkpoints: reporting, listing and pruning. The files are in a storage."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from det_keras.master.checkpoints.retention import Candidate, Retention, kept
from det_keras.master.checkpoints.verification import checkpoint_reported, held_checkpoints
from det_keras.master.database.lookups import config_of, find_experiment
from det_keras.master.database.models import (
    CheckpointRow,
    ExperimentRow,
    MediaRow,
    MetricRow,
    ModelVersionRow,
    StorageRow,
    TaskRow,
    TrialRow,
)
from det_keras.master.database.notifier import DELETIONS
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import InvalidArgumentError, NotFoundError
from det_keras.master.reports.metrics import live_rows
from det_keras.master.wire import encode_json
from det_keras.protocol.metrics import VALIDATION
from det_keras.protocol.values import now

COMPLETED = "COMPLETED"
DELETED = "DELETED"
PARTIALLY_DELETED = "PARTIALLY_DELETED"

# Most checkpoints whose deletion one transaction requests.
_MOST_PRUNED = 500


@dataclass(frozen=True)
class CheckpointReport:
    """A report of a checkpoint whose files are in the storage.

    Attributes:
        resources: relative path -> size in bytes.
        metadata: includes `steps_completed`.
    """

    uuid: str
    task_id: str
    allocation_id: str
    storage_id: int | None
    resources: Mapping[str, int]
    metadata: Mapping[str, Any]
    time: datetime | None = None


def valid_uuid(text: str) -> str:
    """Return a UUID in its canonical spelling.

    Raises:
        InvalidArgumentError: `text` is not a UUID.
    """
    try:
        return str(UUID(text))
    except ValueError:
        raise InvalidArgumentError(f"{text!r} is not the UUID of a checkpoint.") from None


def find_checkpoint(session: Session, uuid: str) -> CheckpointRow:
    """Return a checkpoint's record.

    Raises:
        InvalidArgumentError: `uuid` is not a UUID.
        NotFoundError: no checkpoint with this UUID was reported.
    """
    row = session.get(CheckpointRow, valid_uuid(uuid))
    if row is None:
        raise NotFoundError(f"checkpoint '{uuid}' not found")
    return row


def report_checkpoint(tx: Transaction, report: CheckpointReport) -> None:
    """Record a checkpoint; a second report of the same checkpoint changes nothing.

    Raises:
        InvalidArgumentError: the report is malformed, or its task is not a trial.
        NotFoundError: the task does not exist.
    """
    uuid = valid_uuid(report.uuid)
    if tx.get(CheckpointRow, uuid) is not None:
        return
    trial = _trial_of(tx, report.task_id)
    steps = report.metadata.get("steps_completed")
    if isinstance(steps, bool) or not isinstance(steps, int | float) or steps < 0 or steps != int(steps):
        raise InvalidArgumentError(
            f"`metadata.steps_completed` must be a number of batches, received {steps!r}."
        )
    known_storage = report.storage_id is not None and tx.get(StorageRow, report.storage_id) is not None
    row = CheckpointRow(
        uuid=uuid,
        trial_id=trial.id,
        task_id=report.task_id,
        allocation_id=report.allocation_id,
        storage_id=report.storage_id if known_storage else None,
        state=COMPLETED,
        steps_completed=int(steps),
        size=sum(report.resources.values()),
        resources=dict(report.resources),
        meta=dict(report.metadata),
        report_time=report.time or now(),
    )
    tx.add(row)
    checkpoint_reported(tx, row)


def _trial_of(tx: Transaction, task_id: str) -> TrialRow:
    trial = tx.scalar(select(TrialRow).where(TrialRow.task_id == task_id))
    if trial is not None:
        return trial
    task = tx.get(TaskRow, task_id)
    if task is None:
        raise NotFoundError(f"task '{task_id}' not found")
    # A continued trial had other tasks before.
    continued = tx.scalars(select(TrialRow).where(TrialRow.earlier_task_ids != []))
    earlier = next((trial for trial in continued if task_id in trial.earlier_task_ids), None)
    if earlier is None:
        raise InvalidArgumentError(f"Task {task_id!r} is not a trial. Only trials have checkpoints.")
    return earlier


def latest_checkpoint(session: Session, trial_id: int) -> CheckpointRow | None:
    """Return the checkpoint from which a trial resumes: the complete checkpoint with the most batches."""
    return session.scalar(
        select(CheckpointRow)
        .where(CheckpointRow.trial_id == trial_id, CheckpointRow.state == COMPLETED)
        # Not a checkpoint whose files are about to be deleted. An empty list only requests a new list of the files.
        .where(or_(CheckpointRow.pending_deletion.is_(None), CheckpointRow.pending_deletion == []))
        .order_by(CheckpointRow.steps_completed.desc(), CheckpointRow.report_time.desc())
        .limit(1)
    )


def register_storage(tx: Transaction, section: Mapping[str, Any]) -> int:
    """Return the number of a storage; equal sections have the same number."""
    fingerprint = hashlib.sha256(encode_json(dict(sorted(section.items())))).hexdigest()
    row = tx.scalar(select(StorageRow).where(StorageRow.fingerprint == fingerprint))
    if row is None:
        row = StorageRow(fingerprint=fingerprint, config=dict(section))
        tx.add(row)
        tx.flush()
    return row.id


def storage_section(session: Session, stored: CheckpointRow | MediaRow) -> dict[str, Any]:
    """Return the `checkpoint_storage` section of the storage that has the files of a checkpoint or of media."""
    if stored.storage_id is not None:
        row = session.get(StorageRow, stored.storage_id)
        if row is not None:
            return row.config
    trial = session.get(TrialRow, stored.trial_id)
    assert trial is not None
    return config_of(find_experiment(session, trial.experiment_id)).checkpoint_storage.to_dict()


def replace_resources(row: CheckpointRow, resources: Mapping[str, int]) -> None:
    """Record the remaining files of a checkpoint; without files it is deleted."""
    files = {path for path in resources if not path.endswith("/")}
    if not files:
        row.state = DELETED
        row.resources, row.size = {}, 0
        return
    if dict(resources) != row.resources:
        row.state = PARTIALLY_DELETED
    row.resources, row.size = dict(resources), sum(resources.values())


def request_deletion(tx: Transaction, uuids: Sequence[str], globs: Sequence[str]) -> None:
    """Have the garbage collector delete files of checkpoints.

    Args:
        tx: stores the request.
        uuids: the checkpoints.
        globs: patterns of the files to delete; empty to only list the remaining files again.

    Raises:
        InvalidArgumentError: a glob is empty or points outside of the checkpoint, or a UUID is invalid.
        NotFoundError: a checkpoint is unknown.
    """
    for glob in globs:
        if not glob or ".." in glob.split("/") or glob.startswith("/"):
            raise InvalidArgumentError(
                f"The glob {glob!r} must be a pattern of paths inside of the checkpoint."
            )
    for uuid in uuids:
        row = find_checkpoint(tx, uuid)
        row.pending_deletion = list(dict.fromkeys([*(row.pending_deletion or ()), *globs]))
    tx.notify(DELETIONS)


def prune(store: Store, experiment_id: int) -> None:
    """Have the garbage collector delete the checkpoints that a finished experiment's policy does not keep.

    Which these are is read before: with many checkpoints it takes long, and no other writer has its turn during a
    transaction. What may have changed since is asked again.
    """
    with store.reading() as session:
        experiment = session.get(ExperimentRow, experiment_id)
        uuids = [] if experiment is None else superfluous(session, experiment, _retention(experiment))
    rest = deque(uuids)
    is_done = False
    while not is_done:
        with store.writing() as tx:
            experiment = tx.get(ExperimentRow, experiment_id)
            # It may have been continued, or deleted.
            if experiment is None or not experiment.is_pruning_due:
                return
            needed = _needed(tx)
            part = [rest.popleft() for _ in range(min(len(rest), _MOST_PRUNED))]
            request_deletion(tx, [uuid for uuid in part if uuid not in needed], ["**/*"])
            is_done = not rest
            experiment.is_pruning_due = not is_done


def superfluous(session: Session, experiment: ExperimentRow, retention: Retention) -> list[str]:
    """Return the UUIDs of complete checkpoints that are to be deleted.

    Args:
        session: to read with.
        experiment: the experiment.
        retention: the policy. Also kept are checkpoints from which trials start, those that are being verified, and
            versions of models.
    """
    found = candidates(session, experiment)
    smaller_is_better = config_of(experiment).searcher.smaller_is_better
    keep = kept(found, retention, smaller_is_better=smaller_is_better)
    keep |= _needed(session)
    return [candidate.uuid for candidate in found if candidate.uuid not in keep]


def candidates(session: Session, experiment: ExperimentRow) -> list[Candidate]:
    """Return an experiment's complete checkpoints, with the metric of the validation at the same batch."""
    trial_ids = select(TrialRow.id).where(TrialRow.experiment_id == experiment.id)
    metrics = {
        (row.trial_id, row.total_batches): row
        for row in session.scalars(live_rows(trial_ids).where(MetricRow.group == VALIDATION))
    }
    rows = session.scalars(
        select(CheckpointRow)
        .where(CheckpointRow.trial_id.in_(trial_ids), CheckpointRow.state == COMPLETED)
        .order_by(CheckpointRow.trial_id, CheckpointRow.report_time, CheckpointRow.uuid)
    )
    result = []
    for row in rows:
        validation = metrics.get((row.trial_id, row.steps_completed))
        result.append(
            Candidate(
                uuid=row.uuid,
                trial_id=row.trial_id,
                steps_completed=row.steps_completed,
                metric=None if validation is None else validation.searcher_metric,
                validated=0.0 if validation is None else validation.end_time.timestamp(),
            )
        )
    return result


def _retention(experiment: ExperimentRow) -> Retention:
    storage = config_of(experiment).checkpoint_storage
    return Retention(storage.save_experiment_best, storage.save_trial_best, storage.save_trial_latest)


def _needed(session: Session) -> set[str]:
    """Return what no policy deletes: where trials start, what is being verified, and versions of models."""
    warm_starts = select(TrialRow.warm_start_uuid).where(TrialRow.warm_start_uuid.is_not(None))
    found = {uuid for uuid in session.scalars(warm_starts) if uuid is not None}
    return found | held_checkpoints(session) | set(session.scalars(select(ModelVersionRow.checkpoint_uuid)))
