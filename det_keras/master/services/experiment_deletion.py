"""The deletion of an experiment: first its files, then its rows, a part of them at a time.

Its state says that it is being deleted, until its own row is. A restarted master therefore continues with what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, inspect, or_, select

from det_keras import storage
from det_keras.errors import CheckpointError, ConfigError
from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.checkpoints.verification import copy_id
from det_keras.master.database.changes import NAMES_ROWS
from det_keras.master.database.context_store import ContextStore
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import (
    AllocationRow,
    Base,
    CheckpointRow,
    ExperimentRow,
    LogRow,
    MediaRow,
    MetricRow,
    SearchEventRow,
    SearchRow,
    SharedLinkRow,
    StorageRow,
    TaskRow,
    TokenRow,
    TrialRow,
    TrialSourceRow,
    VerificationRow,
)
from det_keras.master.database.store import Store
from det_keras.master.reports.provenance import delete_records, subject_of, subjects_of_trial
from det_keras.master.resources import ResourcePool
from det_keras.master.teams.placing import forget_if_deleted
from det_keras.protocol import states
from det_keras.storage.names import events_prefix, media_prefix

logger = logging.getLogger(__name__)

# Most rows that one transaction deletes: it takes some milliseconds, and other writers have their turns in between.
_MOST_ROWS = 2000


def delete_in_parts(store: Store, model: type[Base], condition: ColumnElement[bool]) -> None:
    """Delete rows of things that have ended, in transactions of at most 2,000 rows.

    Args:
        store: the database.
        model: the table.
        condition: which of its rows.
    """
    (key,) = inspect(model).primary_key
    part = select(key).where(condition).limit(_MOST_ROWS)
    deleted = _MOST_ROWS
    while deleted == _MOST_ROWS:
        with store.writing() as tx:
            found = tx.execute(
                delete(model).where(key.in_(part)),
                execution_options={"synchronize_session": False, NAMES_ROWS: True},
            )
            deleted = found.rowcount  # type: ignore[attr-defined]  # that of a statement which changes rows


class ExperimentDeletion:
    """Deletes experiments.

    Args:
        store: the database.
        pool: has the logs of ended tasks.
        bundles: has the code of experiments and jobs.
        cluster_id: part of the path of the trials' TensorBoard events and media.
    """

    def __init__(self, store: Store, pool: ResourcePool, bundles: ContextStore, cluster_id: str) -> None:
        self._store = store
        self._pool = pool
        self._bundles = bundles
        self._cluster_id = cluster_id

    def delete(self, experiment_id: int) -> None:
        """Delete an experiment with its trials, checkpoints, media and logs; its state says if that is impossible."""
        try:
            self._delete_files(experiment_id)
        except (OSError, ConfigError, CheckpointError):
            logger.exception("Experiment %d cannot be deleted.", experiment_id)
            with self._store.writing() as tx:
                experiment = tx.get(ExperimentRow, experiment_id)
                assert experiment is not None
                experiment.state = states.DELETE_FAILED
            return
        self._delete_rows(experiment_id, self._forget_tasks(experiment_id))

    def _delete_files(self, experiment_id: int) -> None:
        trial_ids = select(TrialRow.id).where(TrialRow.experiment_id == experiment_id)
        stored = select(CheckpointRow).where(
            CheckpointRow.trial_id.in_(trial_ids), CheckpointRow.state != checkpoints.DELETED
        )
        of_media = select(MediaRow.storage_id).where(MediaRow.trial_id.in_(trial_ids))
        with self._store.reading() as session:
            places = [
                (row.uuid, checkpoints.storage_section(session, row)) for row in session.scalars(stored)
            ]
            sections = list(session.scalars(select(StorageRow.config).where(StorageRow.id.in_(of_media))))
            experiment = session.get(ExperimentRow, experiment_id)
            assert experiment is not None
            own = config_of(experiment).checkpoint_storage.to_dict()
        for uuid, section in places:
            storage.from_config(section).delete(uuid)
        # Also those in the storage of the config, which may be of an item that was not reported any more.
        for section in (*sections, own):
            storage.from_config(section).delete_files(media_prefix(self._cluster_id, experiment_id))
        # The TensorBoard events that trials wrote to their checkpoint storage.
        storage.from_config(own).delete_files(events_prefix(self._cluster_id, experiment_id))

    def _forget_tasks(self, experiment_id: int) -> Sequence[str]:
        """Remove what the pool has of the tasks; return the names of the copies that were compared with trials."""
        with self._store.reading() as session:
            allocation_ids = session.scalars(
                select(AllocationRow.id).where(AllocationRow.task_id.in_(_tasks_of(experiment_id)))
            ).all()
            copies = session.get(VerificationRow, experiment_id)
        names = []
        if copies is not None:
            names = [copy_id(copies, attempt + 1) for attempt in range(copies.attempts)]
            self._pool.kill(copy_id(copies), force=True)
        for allocation_id in (*allocation_ids, *names):
            self._pool.remove(allocation_id)
        return names

    def _delete_rows(self, experiment_id: int, copies: Sequence[str]) -> None:
        tasks = _tasks_of(experiment_id)
        trials = select(TrialRow.id).where(TrialRow.experiment_id == experiment_id)
        attempts = select(AllocationRow.id).where(AllocationRow.task_id.in_(tasks))
        stored = select(CheckpointRow.uuid).where(CheckpointRow.trial_id.in_(trials))
        is_of_attempt = TokenRow.allocation_id.in_(attempts) | TokenRow.allocation_id.in_(copies)
        parts: Sequence[tuple[type[Base], ColumnElement[bool]]] = (
            (TokenRow, is_of_attempt),
            (LogRow, LogRow.task_id.in_(tasks)),
            (MetricRow, MetricRow.trial_id.in_(trials)),
            (MediaRow, MediaRow.trial_id.in_(trials)),
            (
                TrialSourceRow,
                TrialSourceRow.trial_id.in_(trials) | TrialSourceRow.checkpoint_uuid.in_(stored),
            ),
            (CheckpointRow, CheckpointRow.trial_id.in_(trials)),
            (AllocationRow, AllocationRow.task_id.in_(tasks)),
        )
        for model, condition in parts:
            delete_in_parts(self._store, model, condition)
        self._delete_trials(experiment_id)
        delete_in_parts(self._store, TaskRow, TaskRow.id.in_(tasks))
        with self._store.writing() as tx:
            experiment = tx.get(ExperimentRow, experiment_id)
            assert experiment is not None
            for of_experiment in (SearchEventRow, SearchRow, VerificationRow, SharedLinkRow):
                tx.execute(delete(of_experiment).where(of_experiment.experiment_id == experiment_id))
            delete_records(tx, [subject_of("experiment", experiment_id)])
            tx.delete(experiment)
            tx.flush()
            forget_if_deleted(tx, experiment.project_id)
            context = experiment.context
        self._forget_bundle(context)

    def _delete_trials(self, experiment_id: int) -> None:
        part = select(TrialRow.id).where(TrialRow.experiment_id == experiment_id).limit(_MOST_ROWS)
        options: dict[str, Any] = {"synchronize_session": False, NAMES_ROWS: True}
        while True:
            with self._store.writing() as tx:
                trial_ids = tx.scalars(part).all()
                if not trial_ids:
                    return
                delete_records(tx, [subject for number in trial_ids for subject in subjects_of_trial(number)])
                tx.execute(delete(TrialRow).where(TrialRow.id.in_(trial_ids)), execution_options=options)

    def _forget_bundle(self, digest: str | None) -> None:
        if digest is None:
            return
        # Checked and removed under the writers' lock: no experiment or job can start to use the bundle in between.
        with self._store.writing() as tx:
            users = or_(
                select(ExperimentRow.id).where(ExperimentRow.context == digest).exists(),
                select(TaskRow.id).where(TaskRow.context == digest).exists(),
            )
            if not tx.scalar(select(users)):
                self._bundles.remove(digest)


def _tasks_of(experiment_id: int) -> Any:
    """Return the query for the tasks of an experiment's trials, also those before they were continued."""
    job = select(ExperimentRow.job_id).where(ExperimentRow.id == experiment_id).scalar_subquery()
    return select(TaskRow.id).where(TaskRow.job_id == job)
