"""Allocations: attempts to run a task on slots, from their row to their end."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session, load_only

from det_keras.master.database.models import AllocationRow, TaskRow, TrialRow
from det_keras.master.database.notifier import WORK, allocation_topic, task_topic
from det_keras.master.database.store import Transaction
from det_keras.master.errors import NotFoundError
from det_keras.master.lifecycle import Exit
from det_keras.master.resources import Share
from det_keras.protocol.states import STARTING, TERMINATED
from det_keras.protocol.values import now

#: How long a task may take to stop after a request, in seconds.
DEFAULT_PREEMPTION_TIMEOUT_S = 3600


def open_allocation(
    tx: Transaction, task: TaskRow, run_id: int, shares: Sequence[Share], master_url: str
) -> AllocationRow:
    """Record a new attempt, before its directory and process exist.

    Args:
        tx: stores the row. It is committed before the launch: a master that is killed in between finds the row.
        task: the task to run.
        run_id: number of the attempt; 1 is the first.
        shares: the slots that it occupies, by node; empty for a task without slots.
        master_url: the address that the task is given.
    """
    row = AllocationRow(
        id=f"{task.id}.{run_id}",
        task_id=task.id,
        run_id=run_id,
        state=STARTING,
        resources_id=str(uuid.uuid4()),
        shares=[share.to_dict() for share in shares],
        master_url=master_url,
        is_preempted=False,
        is_acknowledged=False,
        is_killed=False,
        log_offsets={},
        exit_reason="",
        start_time=now(),
    )
    tx.add(row)
    tx.notify(task_topic(task.id))
    return row


def close_allocation(tx: Transaction, allocation: AllocationRow, exit_: Exit) -> Exit:
    """Record the end of an attempt and wake its waiters.

    Args:
        tx: stores the change.
        allocation: the attempt.
        exit_: how its process ended.

    Returns:
        `exit_`, with whether the attempt was killed or acknowledged a request to stop.
    """
    allocation.state = TERMINATED
    allocation.end_time = now()
    allocation.exit_code = exit_.code
    allocation.kill_at = None
    tx.notify(allocation_topic(allocation.id))
    tx.notify(task_topic(allocation.task_id))
    tx.notify(WORK)
    exit_ = Exit(
        exit_.ending,
        code=exit_.code,
        is_killed=allocation.is_killed,
        is_acknowledged=allocation.is_acknowledged,
        detail=exit_.detail,
    )
    # A task that stops on request may print a traceback too, which is not a failure.
    allocation.exit_reason = exit_.detail if exit_.is_failure else ""
    return exit_


def preempt(tx: Transaction, allocation: AllocationRow, timeout_s: int | None) -> None:
    """Request a task to stop; it is killed if it takes too long. No effect if it was requested before.

    Args:
        tx: stores the request.
        allocation: the attempt.
        timeout_s: time that the task has for stopping, in seconds; None for an hour.
    """
    if allocation.is_preempted:
        return
    allocation.is_preempted = True
    limit = timedelta(seconds=DEFAULT_PREEMPTION_TIMEOUT_S if timeout_s is None else timeout_s)
    kill_at = now() + limit
    allocation.kill_at = min(allocation.kill_at or kill_at, kill_at)
    tx.notify(allocation_topic(allocation.id))
    tx.notify(WORK)


def kill(tx: Transaction, allocation: AllocationRow, *, after_s: float = 0.0) -> None:
    """Have the dispatcher kill a task.

    Args:
        tx: stores the request.
        allocation: the attempt.
        after_s: delay in seconds; an earlier time that is already set stays.
    """
    kill_at = now() + timedelta(seconds=after_s)
    allocation.kill_at = min(allocation.kill_at or kill_at, kill_at)
    tx.notify(WORK)


def live_allocation(session: Session, task_id: str) -> AllocationRow | None:
    """Return the attempt of a task that has not ended; None if there is none."""
    return session.scalar(
        select(AllocationRow).where(AllocationRow.task_id == task_id, AllocationRow.end_time.is_(None))
    )


def last_start(session: Session, task_id: str) -> datetime | None:
    """Return when the last attempt of a task began; None if there was none."""
    return session.scalar(select(func.max(AllocationRow.start_time)).where(AllocationRow.task_id == task_id))


def live_allocations(session: Session) -> Sequence[AllocationRow]:
    """Return all attempts that have not ended, oldest first."""
    return session.scalars(
        select(AllocationRow).where(AllocationRow.end_time.is_(None)).order_by(AllocationRow.start_time)
    ).all()


def shares_of(allocation: AllocationRow) -> list[Share]:
    """Return the slots that an attempt occupies, by node."""
    return [Share.from_dict(content) for content in allocation.shares]


@dataclass(frozen=True)
class TrialRun:
    """One run of a trial on slots.

    Attributes:
        trial_id: number of the trial.
        start: when it was given the slots.
        end: when it released them; None if it has not.
        shares: the slots, by node.
    """

    trial_id: int
    start: datetime
    end: datetime | None
    shares: list[Share]


def runs_of_experiment(session: Session, experiment_id: int) -> list[TrialRun]:
    """Return the runs of all trials of an experiment, oldest first."""
    # Hyperparameters and summaries of a large search take longer to read than all the rest.
    columns = load_only(TrialRow.task_id, TrialRow.earlier_task_ids)
    query = select(TrialRow).where(TrialRow.experiment_id == experiment_id).options(columns)
    trials = session.scalars(query)
    trial_ids = {task_id: trial.id for trial in trials for task_id in trial.task_ids}
    rows = session.scalars(
        select(AllocationRow)
        .where(AllocationRow.task_id.in_(trial_ids))
        .order_by(AllocationRow.start_time, AllocationRow.id)
    )
    return [TrialRun(trial_ids[row.task_id], row.start_time, row.end_time, shares_of(row)) for row in rows]


def first_starts(session: Session, trial_ids: Collection[int]) -> dict[int, datetime]:
    """Return when the first run of each trial was started; trials that the master has not started are absent."""
    columns = load_only(TrialRow.task_id, TrialRow.earlier_task_ids)
    trials = session.scalars(select(TrialRow).where(TrialRow.id.in_(trial_ids)).options(columns))
    owners = {task_id: trial.id for trial in trials for task_id in trial.task_ids}
    query = select(AllocationRow.task_id, func.min(AllocationRow.start_time))
    found: dict[int, datetime] = {}
    for task_id, start in session.execute(
        query.where(AllocationRow.task_id.in_(owners)).group_by(AllocationRow.task_id)
    ):
        found[owners[task_id]] = min(start, found.get(owners[task_id], start))
    return found


def find_allocation(session: Session, allocation_id: str) -> AllocationRow:
    """Return the attempt with an id.

    Raises:
        NotFoundError: it does not exist.
    """
    row = session.get(AllocationRow, allocation_id)
    if row is None:
        raise NotFoundError(f"allocation '{allocation_id}' not found")
    return row
