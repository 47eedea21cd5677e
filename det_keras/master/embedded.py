"""The embedded master, assembled from its parts."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.launch.fork_server import NOTHING_CHANGED, Inheritance
from det_keras.master import process
from det_keras.master.accounts.access_tokens import AccessTokens
from det_keras.master.accounts.attempts import LoginAttempts
from det_keras.master.accounts.audit import KEPT_DAYS, AuditTrail
from det_keras.master.accounts.auth import Accounts
from det_keras.master.accounts.links import SharedLinks
from det_keras.master.accounts.users import Users
from det_keras.master.checkpoints import verification
from det_keras.master.database.context_store import ContextStore
from det_keras.master.database.damage import refuse_damaged
from det_keras.master.database.engines import SQLITE, open_database
from det_keras.master.database.models import SettingRow
from det_keras.master.database.notifier import WORK, Notifier
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError
from det_keras.master.experiments.experiments import Experiments
from det_keras.master.experiments.reporting import report_metrics
from det_keras.master.experiments.search_state import store_searches
from det_keras.master.registry.versions import pinned
from det_keras.master.reports.batcher import ReportBatcher
from det_keras.master.reports.series import Curves
from det_keras.master.reports.system import SystemMetrics
from det_keras.master.resources import LocalPool, RayPool, ResourcePool, Slot
from det_keras.master.resources.ray import former_address
from det_keras.master.services.background import DatabaseWatch
from det_keras.master.services.dispatcher import Dispatcher
from det_keras.master.services.garbage_collector import GarbageCollector
from det_keras.master.services.launching import Launcher
from det_keras.master.services.settler import Settler
from det_keras.master.services.verifier import Verifier
from det_keras.master.services.webhook_sender import WebhookSender
from det_keras.master.table.experiments import ExperimentRows
from det_keras.master.table.rows import TrialRows
from det_keras.master.tasks.allocations import live_allocations, shares_of
from det_keras.master.tasks.jobs import Jobs
from det_keras.master.tasks.live_queue import LiveQueue
from det_keras.master.tasks.scheduling import Policy, make_policy
from det_keras.master.tasks.task_environment import Identity
from det_keras.master.teams import payloads, projects, webhooks
from det_keras.master.teams.outgoing import Networks
from det_keras.master.usage import DiskUsage
from det_keras.protocol.values import is_loopback, now


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
        ray: address of the Ray cluster that is the pool; None for this machine.
        advertise: the address that tasks connect to, if `url` is not theirs.
        policy: decides which task gets which slots; by priority, without preemption, by default.
        shared_links: whether reports are served without a login to those who have a link.
        verify_resume: when experiments are verified whose configs do not say: ``once``, ``never`` or ``always``.
        inheritance: what tasks on this machine have of the account; all that this process has by default.
        audit_days: how long the record of changes keeps an entry; 0 for ever.
        webhook_networks: where webhooks may be; public addresses by default.
        log_retention_days: days that logs are kept whose configs do not say; None for ever.

    Raises:
        DetError: Ray is not installed.
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
        ray: str | None = None,
        advertise: str | None = None,
        policy: Policy | None = None,
        shared_links: bool = False,
        verify_resume: str = verification.NEVER,
        inheritance: Inheritance = NOTHING_CHANGED,
        audit_days: int = KEPT_DAYS,
        webhook_networks: Networks | None = None,
        log_retention_days: int | None = None,
    ) -> None:
        self.home = home
        self.log_retention_days = log_retention_days
        self.started_at = now()
        self.store = store
        self.notifier = notifier
        store.claim(url=url, home=str(home.root))
        self.identity = Identity(
            url=advertise or url,
            master_id=str(uuid.uuid4()),
            cluster_id=_cluster_id(store),
            cert_file=cert_file,
        )
        self.accounts = Accounts(store, home)
        self.audit_trail = AuditTrail(store)
        self.login_attempts = LoginAttempts(when_refused=self.audit_trail.note_refused_login)
        self.report_batcher = ReportBatcher(store, report_metrics)
        self.curves = Curves(store)
        self.system_metrics = SystemMetrics(store)
        self.trial_rows = TrialRows(store)
        self.experiment_rows = ExperimentRows(store)
        self.users = Users(store, self.accounts, home)
        self.access_tokens = AccessTokens(store, self.accounts)
        self.shared_links = SharedLinks(store, is_allowed=shared_links)
        self.bundles = ContextStore(home.root / "contexts")
        self.disk_usage = DiskUsage(store, home, self.bundles.root)
        self._ray = ray

        def wake() -> None:
            notifier.notify(WORK)

        if pool is not None:
            self.pool = pool
        elif ray is not None:
            self.pool = RayPool(
                ray,
                self.identity.cluster_id,
                home,
                environment,
                is_only_local=is_loopback(urlsplit(self.identity.url).hostname or ""),
                when_changed=wake,
                inheritance=inheritance,
            )
        else:
            self.pool = LocalPool(
                home, slots, environment, info_mounts=info_mounts, when_changed=wake, inheritance=inheritance
            )
        self.default_storage = {"type": "directory", "container_path": str(home.checkpoints)}
        self.experiments = Experiments(store, self.bundles, self.default_storage, self.pool)
        self.jobs = Jobs(store, self.bundles, self.pool, pin_model=pinned)
        self.queue = LiveQueue(store, self.pool, policy or make_policy())
        launcher = Launcher(self.identity, self.pool, self.bundles, self.accounts)
        self.dispatcher = Dispatcher(store, self.pool, launcher, self.accounts, self.queue, notifier)
        self.webhook_sender = WebhookSender(store, notifier, home, webhook_networks or Networks())
        store.companions.append(webhooks.queue_state_changes)
        with store.writing() as tx:
            payloads.set_base(
                tx, "" if is_loopback(urlsplit(self.identity.url).hostname or "") else self.identity.url
            )
            # Copies run on the master's machine only.
            verification.set_default(tx, verify_resume if self.pool.is_one_machine else verification.NEVER)
        self.verifier = Verifier(home, store, self.pool, launcher, self.accounts, self.queue, notifier)
        self.garbage_collector = GarbageCollector(
            store,
            self.pool,
            self.bundles,
            notifier,
            self.identity.cluster_id,
            self.system_metrics,
            audit_days,
            log_retention_days,
        )
        self.settler = Settler(store, notifier)
        self.database_watch = DatabaseWatch(store)

    def connect(self) -> None:
        """Connect with the machines; before `start`.

        Raises:
            DetError: they cannot be reached, or tasks run on those of another pool.
        """
        with self.store.reading() as session:
            live = {row.id: shares_of(row) for row in live_allocations(session)}
        former = former_address(self.home)
        if former not in (None, self._ray) and any(live.values()):
            raise DetError(
                f"Trials or jobs are running on Ray at {former}. Start the master with --ray {former}, or end them "
                "first with `det deploy local cluster-down --kill`."
            )
        self.pool.start(live)

    def start(self) -> None:
        """Create the accounts and start the threads."""
        self.accounts.open()
        with self.store.writing() as tx:
            projects.ensure_first(tx, self.accounts.admin_id(tx))
        self.report_batcher.start()
        self.dispatcher.start()
        self.verifier.start()
        self.garbage_collector.start()
        self.settler.start()
        self.webhook_sender.start()
        self.database_watch.start()

    def stop(self) -> None:
        """End the threads; tasks continue under their supervisors."""
        self.report_batcher.stop()
        self.dispatcher.stop()
        self.verifier.stop()
        self.garbage_collector.stop()
        self.settler.stop()
        self.webhook_sender.stop()
        self.database_watch.stop()
        self.pool.stop()
        self.login_attempts.close()
        with contextlib.suppress(UnavailableError):
            # Their events are in the database otherwise, and the next master repeats them.
            store_searches(self.store)
        self.store.close()


def open_store(
    home: Home,
    notifier: Notifier,
    environment: Mapping[str, str] = os.environ,
    *,
    on_lost: Callable[[], None] = lambda: None,
    is_after_crash: bool = False,
) -> Store:
    """Return the database of a data root, migrated to the current schema.

    Args:
        home: the data root.
        notifier: wakes waiting requests after commits.
        environment: ``DET_KERAS_DB`` in it replaces the database that the root's last master used.
        on_lost: called if another master takes the database.
        is_after_crash: whether the root's last master did not end in good order: the pages of SQLite are checked.

    Raises:
        DetError: the database is damaged or cannot be used, another master has it, or a newer release wrote it.
    """
    url = process.database_url(home, environment)
    if url == SQLITE:
        refuse_damaged(
            home.database,
            was_used=home.token_file.exists(),
            is_after_crash=is_after_crash,
            last_backup=home.last_backup,
        )
    database = open_database(url, home.database)
    store = Store(database, notifier, on_lost)
    try:
        store.migrate()
    except BaseException:
        store.close()
        raise
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
