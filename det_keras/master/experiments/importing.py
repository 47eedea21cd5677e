"""Runs of other trackers, as unmanaged experiments with one trial each.

An import sends a run in parts, each of which is one transaction and may be sent again. The last part brings the run's
state and its *fingerprint*: what the tracker's files looked like when the run was read. A run without a fingerprint was
imported in part only, and a run with the same one needs no import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.database.lookups import config_of, find_experiment
from det_keras.master.database.models import ExperimentRow, TrialRow, UserRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from det_keras.master.experiments.trial_rows import TrialRows
from det_keras.master.experiments.unmanaged import UnmanagedController
from det_keras.master.reports.columns import Columns, Stored, check_columns, store_columns
from det_keras.protocol import states

#: The key of a trial's metadata below which the fingerprint is stored.
KEY = "import"
#: The states in which an imported run can be.
STATES = frozenset({states.ACTIVE, states.COMPLETED, states.ERROR, states.CANCELED})


@dataclass(frozen=True)
class ImportedEnd:
    """What the last part of a run says of it.

    Attributes:
        state: one of `STATES`.
        time: when the run ended; None if it has not.
        fingerprint: names what was imported.
        labels: added to those of the experiment.
    """

    state: str
    time: datetime | None
    fingerprint: str
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class ImportedPart:
    """A part of a run.

    Attributes:
        started: when the run started.
        hparams: its hyperparameters.
        reports: its metrics, or some of them.
        end: of the last part; None in the others.
        source: where the run comes from, as plain values.
    """

    started: datetime
    hparams: Mapping[str, Any]
    reports: Sequence[Columns] = ()
    end: ImportedEnd | None = None
    source: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported:
    """What storing a part changed.

    Attributes:
        trial_id: the run's trial.
        stored: reports that were added or changed.
        has_changed: whether anything else of the run has changed, such as its state.
    """

    trial_id: int
    stored: Stored
    has_changed: bool


def store_part(
    tx: Transaction, caller_id: int, experiment_id: int, part: ImportedPart, *, is_new: bool
) -> Imported:
    """Store a part of a run; the first one creates the trial.

    Args:
        tx: the transaction.
        caller_id: number of the user.
        experiment_id: the experiment of the run.
        part: what is stored.
        is_new: whether this transaction has created the experiment.

    Raises:
        PermissionDeniedError: another user has imported the run.
        FailedPreconditionError: the experiment is being deleted, or is no import.
        InvalidArgumentError: the part is malformed.
    """
    if part.end is not None and part.end.state not in STATES:
        names = ", ".join(sorted(STATES))
        raise InvalidArgumentError(f"The state must be one of {names}, received {part.end.state!r}.")
    check_columns(part.reports)
    experiment = find_experiment(tx, experiment_id)
    _check(tx, caller_id, experiment)
    controller = UnmanagedController(tx, experiment)
    if is_new:
        trial = controller.add_imported_trial(str(experiment.external_id), part.hparams, part.started)
    else:
        trial = _known_trial(tx, experiment)
    has_changed = trial.hparams != dict(part.hparams)
    if has_changed:
        trial.hparams = dict(part.hparams)
    searcher = config_of(experiment).searcher
    stored = Stored()
    for columns in part.reports:
        stored += store_columns(tx, trial, columns, searcher)
    if part.end is None:
        # Until the last part has arrived, the run is imported in part only.
        trial.run_metadata = {**(trial.run_metadata or {}), KEY: dict(part.source)}
    else:
        has_changed |= (trial.state, trial.end_time) != (part.end.state, part.end.time)
        controller.set_imported_end(trial, part.end.state, part.end.time)
        content = {**part.source, "fingerprint": part.end.fingerprint}
        trial.run_metadata = {**(trial.run_metadata or {}), KEY: content}
        has_changed |= _add_labels(experiment, part.end.labels)
    return Imported(trial.id, stored, has_changed)


def find(session: Session, external_ids: Sequence[str]) -> dict[str, tuple[int, int, str]]:
    """Return the experiment, the trial and the fingerprint of each known run; "" for one imported in part only."""
    query = (
        select(ExperimentRow.external_id, ExperimentRow.id, TrialRow.id, TrialRow.run_metadata)
        .join(TrialRow, TrialRow.experiment_id == ExperimentRow.id)
        .where(ExperimentRow.external_id.in_(external_ids), TrialRow.external_id == ExperimentRow.external_id)
    )
    return {
        external_id: (experiment_id, trial_id, _fingerprint(metadata))
        for external_id, experiment_id, trial_id, metadata in session.execute(query)
    }


def _fingerprint(metadata: Mapping[str, Any] | None) -> str:
    content = (metadata or {}).get(KEY)
    found = content.get("fingerprint") if isinstance(content, Mapping) else None
    return found if isinstance(found, str) else ""


def _known_trial(tx: Transaction, experiment: ExperimentRow) -> TrialRow:
    trial = TrialRows(tx, experiment).with_external_id(str(experiment.external_id))
    if trial is None or KEY not in (trial.run_metadata or {}):
        raise FailedPreconditionError(
            f"Experiment {experiment.id} has the external id {experiment.external_id!r}, and is no imported run."
        )
    return trial


def _check(tx: Transaction, caller_id: int, experiment: ExperimentRow) -> None:
    if experiment.owner_id != caller_id:
        owner = tx.get(UserRow, experiment.owner_id)
        name = "" if owner is None else f" {owner.username!r}"
        raise PermissionDeniedError(f"User{name} has imported this run, as experiment {experiment.id}.")
    if experiment.state in (states.DELETING, states.DELETE_FAILED):
        raise FailedPreconditionError(f"experiment in incompatible state {experiment.state}")


def _add_labels(experiment: ExperimentRow, labels: Sequence[str]) -> bool:
    """Add labels, and keep those that users have added; return whether any was new."""
    merged = sorted({*experiment.labels, *labels})
    if merged == experiment.labels:
        return False
    experiment.labels = merged
    experiment.config = {**experiment.config, "labels": merged}
    return True
