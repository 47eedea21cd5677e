"""Allocations: attempts to run a task on slots, from their row to their end."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.database.events import WORK, allocation_topic, task_topic
from det_keras.master.database.models import AllocationRow, TaskRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import NotFoundError
from det_keras.master.lifecycle import Exit
from det_keras.protocol.values import now

__all__ = [
    "DEFAULT_PREEMPTION_TIMEOUT_S",
    "RUNNING",
    "STARTING",
    "TERMINATED",
    "close_allocation",
    "find_allocation",
    "kill",
    "live_allocation",
    "live_allocations",
    "open_allocation",
    "preempt",
]

STARTING = "STARTING"
RUNNING = "RUNNING"
TERMINATED = "TERMINATED"

#: How long a task that was asked to stop may take, in seconds.
DEFAULT_PREEMPTION_TIMEOUT_S = 3600


def open_allocation(
    tx: Transaction, task: TaskRow, run_id: int, slot_ids: Sequence[int], master_url: str
) -> AllocationRow:
    """Record an attempt, before anything of it exists."""
    row = AllocationRow(
        id=f"{task.id}.{run_id}",
        task_id=task.id,
        run_id=run_id,
        state=STARTING,
        resources_id=str(uuid.uuid4()),
        slot_ids=list(slot_ids),
        master_url=master_url,
        is_preempted=False,
        is_acknowledged=False,
        is_killed=False,
        log_offset=0,
        exit_reason="",
        start_time=now(),
    )
    tx.add(row)
    tx.notify(task_topic(task.id))
    return row


def close_allocation(tx: Transaction, allocation: AllocationRow, exit_: Exit) -> Exit:
    """Record the end of an attempt; return it with what the master knows about it."""
    allocation.state = TERMINATED
    allocation.end_time = now()
    allocation.exit_code = exit_.code
    allocation.exit_reason = exit_.detail
    allocation.kill_at = None
    tx.notify(allocation_topic(allocation.id))
    tx.notify(task_topic(allocation.task_id))
    tx.notify(WORK)
    return Exit(
        exit_.ending,
        code=exit_.code,
        is_killed=allocation.is_killed,
        is_acknowledged=allocation.is_acknowledged,
        detail=exit_.detail,
    )


def preempt(tx: Transaction, allocation: AllocationRow, timeout_s: int | None) -> None:
    """Ask a task to stop; it is killed when it takes too long."""
    if allocation.is_preempted:
        return
    allocation.is_preempted = True
    limit = timedelta(seconds=DEFAULT_PREEMPTION_TIMEOUT_S if timeout_s is None else timeout_s)
    kill_at = now() + limit
    allocation.kill_at = min(allocation.kill_at or kill_at, kill_at)
    tx.notify(allocation_topic(allocation.id))
    tx.notify(WORK)


def kill(tx: Transaction, allocation: AllocationRow, *, after_s: float = 0.0) -> None:
    """Have a task killed, at once or a little later."""
    kill_at = now() + timedelta(seconds=after_s)
    allocation.kill_at = min(allocation.kill_at or kill_at, kill_at)
    tx.notify(WORK)


def live_allocation(session: Session, task_id: str) -> AllocationRow | None:
    """Return the attempt of a task that has not ended, None without one."""
    return session.scalar(
        select(AllocationRow).where(AllocationRow.task_id == task_id, AllocationRow.end_time.is_(None))
    )


def live_allocations(session: Session) -> Sequence[AllocationRow]:
    """Return all attempts that have not ended, oldest first."""
    return session.scalars(
        select(AllocationRow).where(AllocationRow.end_time.is_(None)).order_by(AllocationRow.start_time)
    ).all()


def find_allocation(session: Session, allocation_id: str) -> AllocationRow:
    """Return an attempt.

    Raises:
        NotFoundError: there is none of that id.
    """
    row = session.get(AllocationRow, allocation_id)
    if row is None:
        raise NotFoundError(f"allocation '{allocation_id}' not found")
    return row
