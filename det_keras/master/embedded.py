"""The embedded master, assembled from its parts."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy.orm import Session

from det_keras.home import Home
from det_keras.master.accounts.auth import Accounts
from det_keras.master.accounts.users import Users
from det_keras.master.database.context_store import ContextStore
from det_keras.master.database.models import SettingRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store
from det_keras.master.experiments.experiments import Experiments
from det_keras.master.experiments.reporting import report_metrics
from det_keras.master.reports.batcher import ReportBatcher
from det_keras.master.reports.series import Curves
from det_keras.master.resources import LocalPool, ResourcePool, Slot
from det_keras.master.services.dispatcher import Dispatcher
from det_keras.master.services.garbage_collector import GarbageCollector
from det_keras.master.services.launching import Launcher
from det_keras.master.tasks.jobs import Jobs
from det_keras.master.tasks.task_environment import Identity
from det_keras.protocol.values import now

__all__ = ["EmbeddedMaster", "open_store"]


class EmbeddedMaster:
    """One master: its parts, and the order in which they start and stop.

    Args:
        home: the data root; its lock is held by the caller.
        store: its database, migrated to the current schema.
        notifier: wakes waiting requests after commits.
        url: the address that tasks connect to.
        slots: the slots that tasks may use.
        environment: the variables that tasks inherit.
        pool: where tasks run; processes of this machine by default.
        cert_file: PEM file with which tasks check the master's certificate; None without TLS.
        info_mounts: whether tasks of the default pool see the info files of Determined's own package.
    """

    def __init__(
        self,
        home: Home,
        store: Store,
        notifier: Notifier,
        *,
        url: str,
        slots: Sequence[Slot],
        environment: Mapping[str, str],
        pool: ResourcePool | None = None,
        cert_file: Path | None = None,
        info_mounts: bool = False,
    ) -> None:
        self.home = home
        self.started_at = now()
        self.store = store
        self.notifier = notifier
        self.identity = Identity(
            url=url,
            master_id=str(uuid.uuid4()),
            cluster_id=_cluster_id(store),
            agent_id=socket.gethostname(),
            home=home.root,
            cert_file=cert_file,
        )
        self.accounts = Accounts(store, home)
        self.report_batcher = ReportBatcher(store, report_metrics)
        self.curves = Curves(store)
        self.users = Users(store, self.accounts, home)
        self.bundles = ContextStore(home.root / "contexts")
        self.pool = pool or LocalPool(home, slots, environment, info_mounts=info_mounts)
        self.default_storage = {"type": "directory", "container_path": str(home.checkpoints)}
        self.experiments = Experiments(store, self.bundles, self.default_storage, len(self.pool.slots))
        self.jobs = Jobs(store, self.bundles, len(self.pool.slots))
        launcher = Launcher(self.identity, self.pool, self.bundles, self.accounts, environment)
        self.dispatcher = Dispatcher(store, self.pool, launcher, self.accounts, notifier)
        self.garbage_collector = GarbageCollector(
            store, self.pool, self.bundles, notifier, self.identity.cluster_id
        )

    def start(self) -> None:
        """Create the accounts and start the threads."""
        self.accounts.open()
        self.report_batcher.start()
        self.dispatcher.start()
        self.garbage_collector.start()

    def stop(self) -> None:
        """End the threads; tasks continue under their supervisors."""
        self.report_batcher.stop()
        self.dispatcher.stop()
        self.garbage_collector.stop()
        self.store.close()


def open_store(home: Home, notifier: Notifier, environment: Mapping[str, str] = os.environ) -> Store:
    """Return the database of a data root, migrated to the current schema.

    Args:
        home: the data root.
        notifier: wakes waiting requests after commits.
        environment: ``DET_KERAS_DB_URL`` in it replaces the root's own database.

    Raises:
        DetError: a newer release wrote the database.
    """
    store = Store(environment.get("DET_KERAS_DB_URL") or Store.url_of(home.database), notifier)
    store.migrate()
    return store


def read_setting(session: Session, name: str) -> str | None:
    """Return the value stored under `name`, None if there is none."""
    row = session.get(SettingRow, name)
    return None if row is None else row.value


def _cluster_id(store: Store) -> str:
    with store.writing() as tx:
        known = read_setting(tx, "cluster_id")
        if known is None:
            known = str(uuid.uuid4())
            tx.add(SettingRow(name="cluster_id", value=known))
        return known
