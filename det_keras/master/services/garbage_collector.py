"""The thread that deletes files of checkpoints, old logs, old system metrics, and whole experiments.

A deletion is recorded in the database before it starts, and until it is complete. A restarted master therefore
continues it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, or_, select

from det_keras import storage
from det_keras.errors import CheckpointError, ConfigError
from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.checkpoints.orphans import remove_unreported
from det_keras.master.checkpoints.verification import copy_id
from det_keras.master.database.context_store import ContextStore
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import (
    AllocationRow,
    CheckpointRow,
    ExperimentRow,
    LogRow,
    MediaRow,
    MetricRow,
    SearchEventRow,
    SearchRow,
    StorageRow,
    TaskRow,
    TokenRow,
    TrialRow,
    VerificationRow,
)
from det_keras.master.database.notifier import DELETIONS, Notifier
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError
from det_keras.master.reports.provenance import delete_records, subject_of
from det_keras.master.reports.system import SystemMetrics
from det_keras.master.resources import ResourcePool
from det_keras.master.services.background import Background
from det_keras.master.tasks.logs import expired_tasks
from det_keras.protocol import states
from det_keras.protocol.values import now
from det_keras.storage.names import events_prefix, media_prefix

logger = logging.getLogger(__name__)

# Failed deletions, such as on a storage that is not mounted, are repeated at this period.
_RETRY_S = 60.0
_THINNING_PERIOD = timedelta(hours=1)
# Only a kill within a few milliseconds leaves a checkpoint that was never reported.
_SWEEP_PERIOD = timedelta(hours=1)
# Listing these costs nothing. Of object stores, only `det checkpoint gc --orphans` lists everything.
_LISTED_TYPES = ("directory", "shared_fs")


class GarbageCollector(Background):
    """Deletes files and rows in the background.

    Args:
        store: the database.
        pool: has the logs of ended tasks.
        bundles: has the code of experiments and jobs.
        notifier: the source of events.
        cluster_id: part of the path of the trials' TensorBoard events and media.
        system_metrics: the samples of the trials' load.
    """

    def __init__(
        self,
        store: Store,
        pool: ResourcePool,
        bundles: ContextStore,
        notifier: Notifier,
        cluster_id: str,
        system_metrics: SystemMetrics,
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._pool = pool
        self._bundles = bundles
        self._system_metrics = system_metrics
        self._thinned_at = now()
        self._swept_at: datetime | None = None
        super().__init__("garbage_collector", notifier, DELETIONS)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(_RETRY_S)
            self._wake.clear()
            try:
                self.tidy()
            except UnavailableError as error:
                logger.warning("Deletions wait for the database: %s", error)
            except Exception:
                logger.exception("A deletion failed; it will be repeated in %d seconds.", _RETRY_S)

    def tidy(self) -> None:
        """Make all pending deletions."""
        self._prune()
        with self._store.reading() as session:
            uuids = session.scalars(
                select(CheckpointRow.uuid).where(CheckpointRow.pending_deletion.is_not(None))
            ).all()
            deleting_ids = session.scalars(
                select(ExperimentRow.id).where(ExperimentRow.state == states.DELETING)
            ).all()
        for uuid in uuids:
            self._delete_files(uuid)
        for experiment_id in deleting_ids:
            self._delete_experiment(experiment_id)
        self._delete_old_logs()
        self._thin_system_metrics()
        self._delete_unreported()

    def _delete_unreported(self) -> None:
        """Delete complete checkpoints whose tasks were killed before they reported them."""
        if self._swept_at is not None and now() - self._swept_at < _SWEEP_PERIOD:
            return
        self._swept_at = now()
        with self._store.reading() as session:
            # A run registers its storage before it stores anything.
            known = session.scalars(select(StorageRow.config)).all()
        sections = [dict(section) for section in known if section.get("type") in _LISTED_TYPES]
        swept = remove_unreported(self._store, sections, self._cluster_id)
        for orphan in swept.orphans:
            logger.info("Deleted checkpoint %s, whose task was killed before it reported it.", orphan.name)

    def _thin_system_metrics(self) -> None:
        if now() - self._thinned_at >= _THINNING_PERIOD:
            self._thinned_at = now()
            self._system_metrics.thin(self._thinned_at)

    def _delete_old_logs(self) -> None:
        """Delete logs whose retention time is over."""
        with self._store.reading() as session:
            task_ids = expired_tasks(session, now())
            if not task_ids:
                return
            allocation_ids = session.scalars(
                select(AllocationRow.id).where(AllocationRow.task_id.in_(task_ids))
            ).all()
        for allocation_id in allocation_ids:
            self._pool.remove(allocation_id)
        with self._store.writing() as tx:
            tx.execute(delete(LogRow).where(LogRow.task_id.in_(task_ids)))

    def _prune(self) -> None:
        with self._store.reading() as session:
            if session.scalar(select(ExperimentRow.id).where(ExperimentRow.is_pruning_due).limit(1)) is None:
                return
        with self._store.writing() as tx:
            for experiment in tx.scalars(select(ExperimentRow).where(ExperimentRow.is_pruning_due)):
                checkpoints.start_pruning(tx, experiment)

    def _delete_files(self, uuid: str) -> None:
        with self._store.reading() as session:
            row = checkpoints.find_checkpoint(session, uuid)
            section = checkpoints.storage_section(session, row)
            globs = list(row.pending_deletion or ())
        try:
            place = storage.from_config(section)
            left = place.delete(uuid, globs) if globs else place.list_files(uuid)
        except (OSError, ValueError, ConfigError, CheckpointError) as error:
            logger.warning("Checkpoint %s cannot be deleted now; this will be repeated. %s", uuid, error)
            return
        with self._store.writing() as tx:
            row = checkpoints.find_checkpoint(tx, uuid)
            checkpoints.replace_resources(row, left)
            # Files are deleted outside of a transaction. Globs that were requested in the meantime stay pending.
            more = [glob for glob in row.pending_deletion or () if glob not in globs]
            row.pending_deletion = more or None

    def _delete_experiment(self, experiment_id: int) -> None:
        with self._store.reading() as session:
            trials = session.scalars(select(TrialRow).where(TrialRow.experiment_id == experiment_id)).all()
            trial_ids = [trial.id for trial in trials]
            task_ids = [task_id for trial in trials for task_id in trial.task_ids]
            stored = session.scalars(
                select(CheckpointRow).where(
                    CheckpointRow.trial_id.in_(trial_ids), CheckpointRow.state != checkpoints.DELETED
                )
            ).all()
            experiment = session.get(ExperimentRow, experiment_id)
            copies = session.get(VerificationRow, experiment_id)
            own_section = None if experiment is None else config_of(experiment).checkpoint_storage.to_dict()
            media_sections = session.scalars(
                select(StorageRow.config).where(
                    StorageRow.id.in_(select(MediaRow.storage_id).where(MediaRow.trial_id.in_(trial_ids)))
                )
            ).all()
            places = [(row.uuid, checkpoints.storage_section(session, row)) for row in stored]
            allocation_ids = session.scalars(
                select(AllocationRow.id).where(AllocationRow.task_id.in_(task_ids))
            ).all()
        try:
            for uuid, section in places:
                storage.from_config(section).delete(uuid)
            # Also those in the storage of the config, which may be of an item that was not reported any more.
            for section in (*media_sections, *([] if own_section is None else [own_section])):
                storage.from_config(section).delete_files(media_prefix(self._cluster_id, experiment_id))
            if own_section is not None:
                self._delete_events(experiment_id, own_section)
        except (OSError, ConfigError, CheckpointError):
            logger.exception("Experiment %d cannot be deleted.", experiment_id)
            self._fail(experiment_id)
            return
        if copies is not None:
            names = [copy_id(copies, attempt + 1) for attempt in range(copies.attempts)]
            self._pool.kill(copy_id(copies), force=True)
            allocation_ids = [*allocation_ids, *names]
        for allocation_id in allocation_ids:
            self._pool.remove(allocation_id)
        context = self._delete_rows(experiment_id, trial_ids, task_ids, allocation_ids)
        self._forget_bundle(context)

    def _delete_events(self, experiment_id: int, section: Mapping[str, Any]) -> None:
        """Delete the TensorBoard events that trials wrote to their checkpoint storage."""
        storage.from_config(section).delete_files(events_prefix(self._cluster_id, experiment_id))

    def _fail(self, experiment_id: int) -> None:
        with self._store.writing() as tx:
            experiment = tx.get(ExperimentRow, experiment_id)
            assert experiment is not None
            experiment.state = states.DELETE_FAILED

    def _delete_rows(
        self,
        experiment_id: int,
        trial_ids: Sequence[int],
        task_ids: Sequence[str],
        allocation_ids: Sequence[str],
    ) -> str | None:
        with self._store.writing() as tx:
            experiment = tx.get(ExperimentRow, experiment_id)
            assert experiment is not None
            tx.execute(delete(TokenRow).where(TokenRow.allocation_id.in_(allocation_ids)))
            tx.execute(delete(LogRow).where(LogRow.task_id.in_(task_ids)))
            tx.execute(delete(MetricRow).where(MetricRow.trial_id.in_(trial_ids)))
            tx.execute(delete(MediaRow).where(MediaRow.trial_id.in_(trial_ids)))
            tx.execute(delete(CheckpointRow).where(CheckpointRow.trial_id.in_(trial_ids)))
            tx.execute(delete(AllocationRow).where(AllocationRow.id.in_(allocation_ids)))
            tx.execute(delete(TrialRow).where(TrialRow.id.in_(trial_ids)))
            tx.execute(delete(TaskRow).where(TaskRow.id.in_(task_ids)))
            tx.execute(delete(SearchEventRow).where(SearchEventRow.experiment_id == experiment_id))
            tx.execute(delete(SearchRow).where(SearchRow.experiment_id == experiment_id))
            tx.execute(delete(VerificationRow).where(VerificationRow.experiment_id == experiment_id))
            subjects = [subject_of("trial", number) for number in trial_ids]
            delete_records(tx, [subject_of("experiment", experiment_id), *subjects])
            tx.delete(experiment)
            return experiment.context

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
