"""The thread that starts tasks, watches them and ends them, as the database says.

It starts tasks, stores their logs, kills them when required, and processes their ends. The database is always written
first: an attempt is recorded before its process is started, a kill before its signal is sent. A master that is killed
between any two lines here finds a row from which it continues after a restart.

Only this thread opens and closes allocations, so free slots stay free between the plan and the launch. Other threads
may end or pause a task in between; `_launch` checks this again in its own transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ParamSpec

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.accounts.auth import Accounts
from det_keras.master.database.changes import QueueChanges
from det_keras.master.database.lookups import config_of, find_experiment, find_trial
from det_keras.master.database.models import AllocationRow, TaskRow, TrialRow
from det_keras.master.database.notifier import WORK, Notifier, task_topic
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import DiskFullError, UnavailableError, is_disk_full
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.experiments.unmanaged import UnmanagedController, hear_all_again, loss_times
from det_keras.master.lifecycle import Ending, Exit
from det_keras.master.resources import ResourcePool, Share, State
from det_keras.master.services.background import Background, Deadlines
from det_keras.master.services.launching import Launcher
from det_keras.master.tasks import allocations, jobs
from det_keras.master.tasks.availability import Availability, stop_misplaced
from det_keras.master.tasks.live_queue import LiveQueue, still_waits
from det_keras.master.tasks.logs import note, store_entries
from det_keras.master.tasks.scheduling import Preemption
from det_keras.protocol.states import ACTIVE, RUNNING
from det_keras.protocol.values import now

logger = logging.getLogger(__name__)

P = ParamSpec("P")

# The period of looking at running tasks: two or three system calls for each.
_LOOK_S = 0.02
# The period of checking everything without an event.
_IDLE_S = 1.0
_KILL_AGAIN_S = 5.0
# A log is stored in so many parts of a megabyte at a time: a task that prints faster than its log is stored must not
# keep the dispatcher from the other tasks.
_MOST_PARTS = 4
# The period of comparing the queue with the database.
_CHECK_S = 60.0
# A pool that can grow learns of so many waiting tasks.
_MOST_DEMAND = 1000
# The key of the log that this master reads by itself.
_ONLY_NODE = "0"


@dataclass
class _Watched:
    """The dispatcher's state of a running allocation.

    Attributes:
        log_offset: its log is stored up to this byte, if this master reads it.
        is_running: whether its row has the state RUNNING.
        shares: the slots that its row has.
    """

    log_offset: int = 0
    is_running: bool = False
    shares: tuple[Share, ...] = ()


class Dispatcher(Background):
    """Starts, watches and ends tasks.

    Args:
        store: the database.
        pool: where tasks run.
        launcher: prepares launches.
        accounts: manages the tokens of tasks.
        queue: the tasks that wait and run.
        notifier: the source of events.
    """

    def __init__(
        self,
        store: Store,
        pool: ResourcePool,
        launcher: Launcher,
        accounts: Accounts,
        queue: LiveQueue,
        notifier: Notifier,
    ) -> None:
        self._store = store
        self._pool = pool
        self._queue = queue
        self._launcher = launcher
        self._accounts = accounts
        self._live: dict[str, _Watched] = {}
        # When allocations are to be killed, and when unmanaged trials count as lost.
        self._kills: Deadlines[str] = Deadlines()
        self._losses: Deadlines[int] = Deadlines()
        # Why no task can be started, as it was last logged.
        self._obstacle: str | None = None
        super().__init__("dispatcher", notifier, WORK)

    def start(self) -> None:
        """Watch the tasks that an earlier master left running, and start the thread."""
        with self._store.reading() as session:
            self._live = {row.id: _watched(row) for row in allocations.live_allocations(session)}
        with self._store.writing() as tx:
            hear_all_again(tx)
        if self._live:
            logger.info("Watching %d running tasks of an earlier start.", len(self._live))
        self._disown_unreachable()
        super().start()

    def _run(self) -> None:
        checked_at = compared_at = silent_at = 0.0
        while not self._stopping:
            self._wake.wait(_LOOK_S if self._live else _IDLE_S)
            is_due = self._wake.is_set() or time.monotonic() - checked_at > _IDLE_S
            is_due = is_due or bool(self._kills.due())
            for allocation_id in list(self._live):
                self._guarded(self._look, allocation_id)
            # The end of a task, found just now, sets the event too.
            if is_due or self._wake.is_set():
                # Before the database is read: an event that is set from here on causes another round.
                self._wake.clear()
                checked_at = time.monotonic()
                self._guarded(self._kill_due)
                self._guarded(self._schedule)
            if checked_at - silent_at > _IDLE_S:
                # It looks at all active trials, and its limit is minutes.
                silent_at = checked_at
                self._guarded(self._give_up_silent)
            if checked_at - compared_at > _CHECK_S:
                compared_at = checked_at
                self._guarded(self._check_queue)

    def _guarded(self, step: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """Run a step; an error in it, such as a full disk, must not prevent the other steps."""
        try:
            step(*arguments, **options)
        except DiskFullError as error:
            # The tasks run on. The pause limits the load until there is space.
            logger.warning("A step of the dispatcher will be repeated. %s", error)
            time.sleep(0.5)
        except UnavailableError:
            # The database is away, which it logs by itself. The tasks run on.
            time.sleep(0.05)
        except Exception:
            # Nothing is lost: the next round finds the same state. The pause limits the load of a persistent error.
            logger.exception("A step of the dispatcher failed; it will be repeated.")
            time.sleep(0.5)

    def _disown_unreachable(self) -> None:
        """Restart tasks that were given an address at which this master does not listen any more."""
        with self._store.writing() as tx:
            for row in allocations.live_allocations(tx):
                if row.master_url != self._launcher.identity.url:
                    logger.warning(
                        "Allocation %s uses the master's former address %s and is restarted.",
                        row.id,
                        row.master_url,
                    )
                    allocations.kill(tx, row)

    def _look(self, allocation_id: str) -> None:
        """Store an allocation's new log lines, and its end."""
        # The state is read before the log: if the task has ended, the log then contains all of its output.
        state = self._pool.look(allocation_id)
        watched = self._live[allocation_id]
        if state.shares is not None and tuple(state.shares) != watched.shares:
            self._place(allocation_id, state.shares)
            watched.shares = tuple(state.shares)
        if not watched.is_running and state.state is State.RUNNING:
            self._mark_running(allocation_id)
            watched.is_running = True
        is_stored = any(not self._store_log(allocation_id, watched) for _ in range(_MOST_PARTS))
        if is_stored and state.state is State.ENDED:
            assert state.exit is not None
            self._end(allocation_id, state.exit)

    def _place(self, allocation_id: str, shares: Sequence[Share]) -> None:
        """Record the slots that the pool chose by itself."""
        with self._store.writing() as tx:
            allocation = allocations.find_allocation(tx, allocation_id)
            allocation.shares = [share.to_dict() for share in shares]
            stop_misplaced(tx, allocation, shares)
            tx.notify(task_topic(allocation.task_id))

    def _mark_running(self, allocation_id: str) -> None:
        with self._store.writing() as tx:
            _set_running(tx, allocation_id)

    def _store_log(self, allocation_id: str, watched: _Watched) -> bool:
        """Store the next part of a log; return whether there was one."""
        entries, offset = self._pool.read_log(allocation_id, watched.log_offset)
        if offset == watched.log_offset:
            return False
        with self._store.writing() as tx:
            allocation = allocations.find_allocation(tx, allocation_id)
            # Lines and offset are stored in one transaction: after a kill no line is stored twice or missing.
            allocation.log_offsets = {_ONLY_NODE: offset}
            store_entries(tx, allocation, entries)
        watched.log_offset = offset
        return True

    def _end(self, allocation_id: str, exit_: Exit) -> None:
        with self._store.writing() as tx:
            allocation = allocations.find_allocation(tx, allocation_id)
            known = allocations.close_allocation(tx, allocation, exit_)
            self._accounts.end_allocation(tx, allocation_id)
            task = tx.get(TaskRow, allocation.task_id)
            assert task is not None
            if task.kind != jobs.TRIAL:
                jobs.job_ended(tx, task, known)
            else:
                trial = tx.scalars(select(TrialRow).where(TrialRow.task_id == task.id)).one()
                controller = ExperimentController(tx, find_experiment(tx, trial.experiment_id))
                controller.run_ended(trial, known)
                self._end_without_machine(controller, trial)
        del self._live[allocation_id]
        # After the commit: a master that is killed in between asks the pool again how the task ended.
        self._pool.release(allocation_id)

    def _end_without_machine(self, controller: ExperimentController, trial: TrialRow) -> None:
        """End a trial whose log policies exclude so many machines that it can never run again."""
        if self._pool.max_slots is None or not trial.excluded_nodes or trial.state != ACTIVE:
            return
        left = sum(len(node.slots) for node in self._pool.nodes if node.id not in trial.excluded_nodes)
        if left < controller.slots_per_trial:
            controller.give_up(
                trial,
                f"its log policies exclude {', '.join(trial.excluded_nodes)}, and no other machine has its slots",
            )

    def _kill_due(self) -> None:
        with self._store.reading() as session:
            self._kills.update(_kill_times(session))
        due = self._kills.due()
        if not due:
            return
        with self._store.writing() as tx:
            # Read again in the transaction: the task may have ended in between.
            rows = [row for row in allocations.live_allocations(tx) if row.id in due]
            # A task that was killed before and is still running is killed together with its supervisor.
            again = {row.id: row.is_killed for row in rows}
            for row in rows:
                row.is_killed = True
                row.kill_at = now() + timedelta(seconds=_KILL_AGAIN_S)
            kill_times = _kill_times(tx)
        self._kills.update(kill_times)
        # Signals are sent after the commit: a master that is killed here finds `is_killed` and sends the signal again.
        for allocation_id, force in again.items():
            self._pool.kill(allocation_id, force=force)

    def _schedule(self) -> None:
        decided, lacking = self._queue.plan(_MOST_DEMAND)
        is_blocked = bool(decided.grants) and self._is_blocked()
        tasks = {grant.task_id for grant in decided.grants}
        tasks.update(preemption.task_id for preemption in decided.preemptions)
        try:
            # First: a pool that reserved slots for this demand needs them for the tasks that start now.
            self._pool.demand(lacking)
            if is_blocked:
                return
            for preemption in decided.preemptions:
                self._preempt(preemption)
            for grant in decided.grants:
                self._launch(grant.task_id, grant.shares)
        finally:
            # The queue assumes that the plan was carried out; the rest is read again.
            self._queue.note(QueueChanges(tasks=tasks))

    def _is_blocked(self) -> bool:
        """Return whether no task can be started now; say why, once."""
        obstacle = self._pool.obstacle()
        if obstacle is not None and obstacle != self._obstacle:
            logger.warning("No task is started. %s", obstacle)
        self._obstacle = obstacle
        return obstacle is not None

    def _check_queue(self) -> None:
        self._queue.check()

    def _preempt(self, preemption: Preemption) -> None:
        """Request a task to stop, so that another one gets its slots."""
        with self._store.writing() as tx:
            allocation = allocations.live_allocation(tx, preemption.task_id)
            trial = tx.scalar(select(TrialRow).where(TrialRow.task_id == preemption.task_id))
            # It may have ended, or was asked to stop, since the plan was made.
            if allocation is None or trial is None or allocation.is_preempted:
                return
            config = config_of(find_experiment(tx, trial.experiment_id))
            allocations.preempt(tx, allocation, config.preemption_timeout)
            text = f"Trial {trial.id} is preempted by {preemption.reason}"
            note(
                tx, preemption.task_id, f"{text}. It resumes from its checkpoint when there are slots for it."
            )
        logger.info("%s.", text)

    def _may_run_on(self, known: Availability, shares: tuple[Share, ...]) -> bool:
        """Return whether the slots of a plan are still in use: they may have been disabled since it was made."""
        host = self._pool.slotless_node
        return known.has_all(shares) and (bool(shares) or host is None or known.has_machine(host))

    def _give_up_silent(self) -> None:
        """End unmanaged trials that have not reported for too long."""
        with self._store.reading() as session:
            self._losses.update(loss_times(session))
        due = self._losses.due()
        if not due:
            return
        with self._store.writing() as tx:
            # Read again in the transaction: a trial may have reported in between.
            self._losses.update(loss_times(tx))
            for trial_id in self._losses.due():
                trial = find_trial(tx, trial_id)
                UnmanagedController(tx, find_experiment(tx, trial.experiment_id)).lose(trial)

    def _launch(self, task_id: str, shares: tuple[Share, ...]) -> None:
        with self._store.writing() as tx:
            task = tx.get(TaskRow, task_id)
            # The user may have ended or paused the task since the plan was made.
            known = Availability.read(tx)
            if task is None or not still_waits(tx, task) or not self._may_run_on(known, shares):
                return
            excluded = tx.scalar(select(TrialRow.excluded_nodes).where(TrialRow.task_id == task_id))
            is_pinned = bool(known or excluded)
            launch = replace(self._launcher.prepare(tx, task, shares), is_pinned=is_pinned)
            if self._pool.starts_at_once:
                # A commit of its own would take longer than a launch.
                _set_running(tx, launch.allocation_id)
        # Committed before the process is started: a master that is killed here finds an allocation without a supervisor
        # after its restart and counts it as lost.
        self._live[launch.allocation_id] = _Watched(is_running=self._pool.starts_at_once, shares=shares)
        try:
            self._pool.launch(launch)
        except OSError as error:
            logger.exception("Allocation %s cannot be started.", launch.allocation_id)
            # Another attempt may succeed: there may be space by then, and the next supervisor is not killed as well.
            is_lost = isinstance(error, ChildProcessError) or is_disk_full(error)
            ending = Ending.LOST if is_lost else Ending.NOT_LAUNCHED
            self._end(launch.allocation_id, Exit(ending, detail=f"it cannot be started ({error})"))


def _set_running(tx: Transaction, allocation_id: str) -> None:
    allocation = allocations.find_allocation(tx, allocation_id)
    allocation.state = RUNNING
    task = tx.get(TaskRow, allocation.task_id)
    assert task is not None
    # TensorBoard reports by itself when it accepts requests.
    allocation.is_ready = allocation.is_ready or task.kind != jobs.TENSORBOARD
    tx.notify(task_topic(task.id))


def _watched(row: AllocationRow) -> _Watched:
    return _Watched(row.log_offsets.get(_ONLY_NODE, 0), shares=tuple(allocations.shares_of(row)))


def _kill_times(session: Session) -> dict[str, datetime]:
    query = select(AllocationRow.id, AllocationRow.kill_at).where(
        AllocationRow.end_time.is_(None), AllocationRow.kill_at.is_not(None)
    )
    return {allocation_id: at for allocation_id, at in session.execute(query) if at is not None}
