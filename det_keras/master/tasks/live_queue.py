"""The queue of this master: read from the database once, then kept up to date by what transactions change.

The database is the truth. After a commit the changed tasks are noted, and they are read again before the queue is used.
So a decision costs what changed since the last one. What is not in the database are reservations of slots for tasks
whose preemptions are on their way; a restarted master reserves those slots again.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Executable, func, or_, select
from sqlalchemy.orm import Session

from det_keras.master.database.changes import QueueChanges
from det_keras.master.database.models import AllocationRow, ExperimentRow, TaskRow, TrialRow
from det_keras.master.database.store import Store
from det_keras.master.resources import Node, ResourcePool
from det_keras.master.tasks import jobs
from det_keras.master.tasks.allocations import shares_of
from det_keras.master.tasks.availability import Availability
from det_keras.master.tasks.scheduling import (
    DEFAULT_PRIORITY,
    Cluster,
    JobFacts,
    Plan,
    Policy,
    Queue,
    Running,
    Waiting,
    tasks_ahead,
    wait_reason,
)
from det_keras.protocol import states

logger = logging.getLogger(__name__)

# A statement may have about 30,000 parameters; with fewer, the databases plan it well.
_IDS_PER_QUERY = 500
# Starts that are read when the master starts. A task that has waited for more of them has lent all that it lends.
_MOST_STARTS = 65_536

_IS_WAITING = (
    (ExperimentRow.state == states.ACTIVE)
    & ExperimentRow.is_unmanaged.is_(False)
    & (TrialRow.state == states.ACTIVE)
    & TrialRow.has_work.is_(True)
)
_TASKS = (
    select(
        TaskRow.id,
        TaskRow.kind,
        TaskRow.job_id,
        TaskRow.end_time,
        TaskRow.start_time,
        TrialRow.experiment_id,
        TrialRow.start_time.label("request_time"),
        TrialRow.excluded_nodes,
        func.coalesce(_IS_WAITING, False).label("is_wanted"),
    )
    .outerjoin(TrialRow, TrialRow.task_id == TaskRow.id)
    .outerjoin(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
)


class LiveQueue:
    """The queue of a master, for any thread.

    Args:
        store: the database.
        pool: the slots.
        policy: decides who gets them.
    """

    def __init__(self, store: Store, pool: ResourcePool, policy: Policy) -> None:
        self._store = store
        self._pool = pool
        self.policy = policy
        self._lock = threading.RLock()
        self._changes_lock = threading.Lock()
        self._changes = QueueChanges(is_everything=True)
        self._nodes: Sequence[tuple[str, str, int]] = ()
        self._queue = Queue(policy.key, Cluster(()))
        store.observers.append(self.note)

    def note(self, changes: QueueChanges) -> None:
        """Have rows read again before the queue is used next; from any thread."""
        with self._changes_lock:
            self._changes.add(changes)

    def plan(self, most_lacking: int) -> tuple[Plan, list[int]]:
        """Decide what happens now.

        What the caller cannot carry out, it has to `note`: the queue assumes that every decision was carried out.

        Args:
            most_lacking: limit of the second value.

        Returns:
            The decisions, and the number of slots of each task that still waits for slots, in order.
        """
        with self.view() as queue:
            plan = self.policy.plan(queue)
            return plan, queue.lacking(most_lacking)

    @contextlib.contextmanager
    def view(self) -> Iterator[Queue]:
        """Yield the queue in its current state; it must not be changed, nor used after the block."""
        with self._lock:
            self._refresh()
            yield self._queue

    def wait_reason(self, job_id: str, task_id: str | None = None) -> str:
        """Return what keeps a job's next task, or one of its tasks, waiting; empty if it does not wait."""
        with self.view() as queue:
            job = queue.jobs.get(job_id)
            if job is None or (task_id is not None and task_id not in job.waiting):
                return ""
            ahead = tasks_ahead(queue).get(job_id, 0)
            if task_id is not None and task_id not in job.reserved:
                ahead += bisect.bisect_left(job.line, job.waiting[task_id].line_key)
            return wait_reason(queue, job, ahead)

    def check(self) -> bool:
        """Compare the queue with the database, and read everything again if they differ; return whether they agree.

        Changes that no transaction announced, as by another program, would be missed otherwise.
        """
        with self._lock:
            self._refresh()
            known = {
                (job.id, task_id)
                for job in self._queue.jobs.values()
                for task_id in (*job.waiting, *job.running)
            }
            with self._store.reading() as session:
                found = {(row.job_id, row.id) for row in session.execute(_of_interest())}
            with self._changes_lock:
                # A change that was committed meanwhile explains a difference.
                is_equal = known == found or bool(self._changes)
                if not is_equal:
                    self._changes.is_everything = True
        if not is_equal:
            logger.warning(
                "The queue differed from the database in %d tasks and is read again.", len(known ^ found)
            )
        return is_equal

    def _refresh(self) -> None:
        with self._changes_lock:
            changes, self._changes = self._changes, QueueChanges()
        nodes = self._pool.nodes
        seen = [(node.id, node.address, len(node.slots)) for node in nodes]
        if seen == self._nodes and not changes:
            return
        try:
            with self._store.reading() as session:
                if changes.is_everything:
                    self._queue = Queue(self.policy.key, Cluster(()))
                if seen != self._nodes or changes.slots or changes.is_everything:
                    self._resize(session, nodes)
                    self._nodes = seen
                if changes.is_everything:
                    self._read_all(session)
                elif changes:
                    self._read_changes(session, changes)
        except BaseException:
            # Nothing is forgotten: a half-read state is corrected by the next attempt.
            self.note(QueueChanges(is_everything=True))
            raise

    def _resize(self, session: Session, nodes: Sequence[Node]) -> None:
        """Plan with the slots of these nodes that are in use."""
        known = Availability.read(session)
        usable = known.usable(nodes)
        host = self._pool.slotless_node
        self._queue.cluster.resize(
            usable,
            disabled=sum(len(node.slots) for node in nodes) - sum(len(node.slots) for node in usable),
            runs_slotless=host is None or known.has_machine(host),
        )

    def _read_all(self, session: Session) -> None:
        active = ExperimentRow.state == states.ACTIVE
        self._set_experiments(session, active & ExperimentRow.is_unmanaged.is_(False))
        newest = (
            select(AllocationRow.start_time, AllocationRow.shares)
            .where(AllocationRow.end_time.is_not(None))
            .order_by(AllocationRow.start_time.desc())
            .limit(_MOST_STARTS)
        )
        for start, shares in reversed(session.execute(newest).all()):
            self._queue.remember_start(microseconds(start), sum(len(share["slot_ids"]) for share in shares))
        self._read_tasks(session, [row.id for row in session.execute(_of_interest())])

    def _read_changes(self, session: Session, changes: QueueChanges) -> None:
        tasks = set(changes.tasks)
        experiments = changes.activity | changes.experiments
        for ids in _parts(experiments):
            found = self._set_experiments(session, ExperimentRow.id.in_(ids))
            for label in {_label(number) for number in ids} - found:
                self._drop(label)
        for ids in _parts(changes.activity):
            tasks.update(session.scalars(_active_tasks(ids)))
        self._read_tasks(session, sorted(tasks))

    def _set_experiments(self, session: Session, condition: Any) -> set[str]:
        """Set the facts of experiments; return the labels of those that exist."""
        columns = (
            ExperimentRow.id,
            ExperimentRow.job_id,
            ExperimentRow.config,
            ExperimentRow.queue_position,
            ExperimentRow.state,
            ExperimentRow.is_unmanaged,
            ExperimentRow.start_time,
        )
        found = set()
        for row in session.execute(select(*columns).where(condition)):
            found.add(_label(row.id))
            self._queue.set_job(row.job_id, facts_of(row))
            if row.state != states.ACTIVE or row.is_unmanaged:
                self._queue.drop_job(row.job_id)
        return found

    def _drop(self, label: str) -> None:
        for job in [job for job in self._queue.jobs.values() if job.facts.label == label]:
            self._queue.drop_job(job.id)

    def _read_tasks(self, session: Session, task_ids: Sequence[str]) -> None:
        for ids in _parts(task_ids):
            rows = session.execute(_TASKS.where(TaskRow.id.in_(ids))).all()
            for gone in set(ids) - {row.id for row in rows}:
                self._queue.remove(gone)
            live = {
                row.task_id: row
                for row in session.scalars(
                    select(AllocationRow).where(
                        AllocationRow.task_id.in_(ids), AllocationRow.end_time.is_(None)
                    )
                )
            }
            ended = self._last_attempts(session, [row.id for row in rows if row.id not in live])
            self._add_jobs(session, rows, live)
            for row in rows:
                start, end = ended.get(row.id, (None, None))
                if start is not None:
                    # It may have been started and have ended since the last reading.
                    self._queue.confirm_ended(row.id, microseconds(start))
                self._set_task(row, live.get(row.id), end)

    def _add_jobs(self, session: Session, rows: Iterable[Any], live: dict[str, AllocationRow]) -> None:
        """Add the jobs of these tasks that are not in the queue: generic jobs, and experiments that are stopping."""
        generic = [row.id for row in rows if row.kind != jobs.TRIAL]
        for task in session.scalars(select(TaskRow).where(TaskRow.id.in_(generic))):
            self._queue.set_job(task.job_id, facts_of(task))
        unknown = {
            row.experiment_id
            for row in rows
            if row.job_id not in self._queue.jobs and row.experiment_id and (row.is_wanted or row.id in live)
        }
        if not unknown:
            return
        for experiment in session.scalars(select(ExperimentRow).where(ExperimentRow.id.in_(unknown))):
            self._queue.set_job(experiment.job_id, facts_of(experiment))

    def _last_attempts(
        self, session: Session, task_ids: Sequence[str]
    ) -> dict[str, tuple[datetime | None, datetime | None]]:
        """Return start and end of the last attempt of each task; nothing for a task that never ran."""
        query = (
            select(
                AllocationRow.task_id, func.max(AllocationRow.start_time), func.max(AllocationRow.end_time)
            )
            .where(AllocationRow.task_id.in_(task_ids))
            .group_by(AllocationRow.task_id)
        )
        return {task_id: (start, end) for task_id, start, end in session.execute(query)}

    def _set_task(self, row: Any, live: AllocationRow | None, end: datetime | None) -> None:
        is_trial = row.kind == jobs.TRIAL
        is_wanted = bool(row.is_wanted) if is_trial else row.end_time is None
        if live is not None:
            task = Running(
                row.id,
                tuple(shares_of(live)),
                microseconds(live.start_time),
                is_stopping=live.is_preempted or live.is_killed,
                is_returning=is_trial and is_wanted,
            )
            self._queue.run(row.job_id, task)
        elif is_wanted:
            since = microseconds(end or row.start_time)
            order = microseconds(row.request_time or row.start_time)
            self._queue.wait(row.job_id, Waiting(row.id, order, since, frozenset(row.excluded_nodes or ())))
        else:
            self._queue.remove(row.id)
        if not is_trial and row.end_time is not None:
            self._queue.drop_job(row.job_id)


def facts_of(row: Any) -> JobFacts:
    """Return what an experiment or a generic job asks for.

    Args:
        row: an `ExperimentRow` or `TaskRow`, or those of its columns that are used.
    """
    resources = (row.config or {}).get("resources") or {}
    # The command of a generic job may not be repeatable; it has no trials either.
    is_experiment = "slots_per_trial" in resources
    return JobFacts(
        slots=resources["slots_per_trial"] if is_experiment else row.slots,
        priority=resources.get("priority") or DEFAULT_PRIORITY,
        weight=float(resources.get("weight") or 1.0),
        max_slots=resources.get("max_slots") if is_experiment else None,
        position=row.queue_position,
        is_preemptible=is_experiment,
        label=_label(row.id) if is_experiment else f"job {row.id}",
        submitted=microseconds(row.start_time),
    )


def still_waits(session: Session, task: TaskRow) -> bool:
    """Return whether a task still waits: the user may have ended or paused it since the plan was made."""
    if task.kind != jobs.TRIAL:
        return task.end_time is None
    query = (
        select(TrialRow.id)
        .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
        .where(TrialRow.task_id == task.id, _IS_WAITING)
    )
    return session.scalar(query) is not None


def microseconds(time: datetime) -> int:
    """Return a time as a whole number of microseconds since 1970."""
    return int(time.timestamp() * 1_000_000)


def _of_interest() -> Executable:
    """Return the query for all tasks that wait or run."""
    running = select(AllocationRow.task_id).where(AllocationRow.end_time.is_(None))
    return _TASKS.where(
        or_(_IS_WAITING, (TaskRow.kind != jobs.TRIAL) & TaskRow.end_time.is_(None), TaskRow.id.in_(running))
    )


def _active_tasks(experiment_ids: Sequence[int]) -> Executable:
    """Return the query for the tasks of experiments that wait or run; there may be many others."""
    of_experiments = TrialRow.experiment_id.in_(experiment_ids)
    waiting = (
        select(TrialRow.task_id)
        .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
        .where(of_experiments, _IS_WAITING)
    )
    running = (
        select(TrialRow.task_id)
        .join(AllocationRow, AllocationRow.task_id == TrialRow.task_id)
        .where(of_experiments, AllocationRow.end_time.is_(None))
    )
    return waiting.union(running)


def _label(experiment_id: int) -> str:
    return f"experiment {experiment_id}"


def _parts(ids: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(ids)
    while part := list(itertools.islice(rest, _IDS_PER_QUERY)):
        yield part
