"""The thread that deletes files of checkpoints, old logs, old system metrics, and whole experiments.

A deletion is recorded in the database before it starts, and until it is complete. A restarted master therefore
continues it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from sqlalchemy import select

from det_keras import storage
from det_keras.errors import CheckpointError, ConfigError
from det_keras.master.accounts.audit import older_than
from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.checkpoints.orphans import remove_unreported
from det_keras.master.database.context_store import ContextStore
from det_keras.master.database.models import (
    AllocationRow,
    AuditRow,
    CheckpointRow,
    DeliveryRow,
    ExperimentRow,
    LogRow,
    StorageRow,
)
from det_keras.master.database.notifier import DELETIONS, Notifier
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError
from det_keras.master.reports.system import SystemMetrics
from det_keras.master.resources import ResourcePool
from det_keras.master.services.background import Background
from det_keras.master.services.experiment_deletion import ExperimentDeletion, delete_in_parts
from det_keras.master.tasks.log_retention import expired_tasks
from det_keras.protocol import states
from det_keras.protocol.values import now

logger = logging.getLogger(__name__)

# Failed deletions, such as on a storage that is not mounted, are repeated at this period.
_RETRY_S = 60.0
# A statement may name only so many values.
_LOOKED_UP_AT_ONCE = 500
_THINNING_PERIOD = timedelta(hours=1)
# A supervisor whose task has ended removes files of its own, and people may want to look at the others.
_KEPT_AFTER_END = timedelta(hours=1)
# What was sent to webhooks can be looked at for so long.
_DELIVERIES_KEPT = timedelta(days=30)
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
        audit_days: how long the record of changes keeps an entry; 0 for ever.
        log_retention_days: days that logs are kept whose configs do not say; None for ever.
    """

    def __init__(
        self,
        store: Store,
        pool: ResourcePool,
        bundles: ContextStore,
        notifier: Notifier,
        cluster_id: str,
        system_metrics: SystemMetrics,
        audit_days: int,
        log_retention_days: int | None = None,
    ) -> None:
        self._log_retention_days = log_retention_days
        self._store = store
        self._cluster_id = cluster_id
        self._pool = pool
        self._deletion = ExperimentDeletion(store, pool, bundles, cluster_id)
        self._system_metrics = system_metrics
        self._audit_days = audit_days
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
            self._deletion.delete(experiment_id)
        with self._store.reading() as session:
            expired = expired_tasks(session, now(), self._log_retention_days)
        self.delete_old_logs(expired)
        self._thin_system_metrics()
        if self._swept_at is None or now() - self._swept_at >= _SWEEP_PERIOD:
            self._swept_at = now()
            self._remove_files_of_ended_tasks()
            ended = DeliveryRow.ended_at <= now() - _DELIVERIES_KEPT
            delete_in_parts(self._store, DeliveryRow, ended)
            if self._audit_days:
                delete_in_parts(self._store, AuditRow, older_than(self._audit_days))
            self._delete_unreported()

    def _remove_files_of_ended_tasks(self) -> None:
        """Remove the log files and exit codes of tasks, which are in the database."""
        with self._store.reading() as session:
            ended = AllocationRow.end_time < now() - _KEPT_AFTER_END
            old = [
                allocation_id
                for part in _parts(list(self._pool.kept()))
                for allocation_id in session.scalars(
                    select(AllocationRow.id).where(AllocationRow.id.in_(part), ended)
                )
            ]
        for allocation_id in old:
            self._pool.remove(allocation_id)

    def _delete_unreported(self) -> None:
        """Delete complete checkpoints whose tasks were killed before they reported them."""
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

    def delete_old_logs(self, task_ids: Sequence[str]) -> None:
        """Delete the logs of tasks; from any thread."""
        for task_id in task_ids:
            with self._store.reading() as session:
                allocation_ids = session.scalars(
                    select(AllocationRow.id).where(AllocationRow.task_id == task_id)
                ).all()
            for allocation_id in allocation_ids:
                self._pool.remove(allocation_id)
            delete_in_parts(self._store, LogRow, LogRow.task_id == task_id)

    def _prune(self) -> None:
        with self._store.reading() as session:
            due = session.scalars(select(ExperimentRow.id).where(ExperimentRow.is_pruning_due)).all()
        for experiment_id in due:
            checkpoints.prune(self._store, experiment_id)

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


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _LOOKED_UP_AT_ONCE):
        yield ids[start : start + _LOOKED_UP_AT_ONCE]
