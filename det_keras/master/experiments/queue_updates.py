"""Changes of the queue by users: priorities, weights, and places among jobs of the same priority."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sqlalchemy import select

from det_keras.master.database.models import ExperimentRow, TaskRow
from det_keras.master.database.notifier import WORK
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import InvalidArgumentError, NotFoundError
from det_keras.master.tasks import jobs
from det_keras.master.tasks.live_queue import LiveQueue
from det_keras.master.tasks.scheduling import DEFAULT_PRIORITY, POOL
from det_keras.master.wire import Message
from det_keras.protocol import states


class QueueUpdate(Message):
    """A change of one job; None leaves a value as it is.

    Attributes:
        job_id: the id of the job.
        priority: 1 to 99; smaller runs first.
        weight: its share of the slots in proportion to the others.
        ahead_of: the id of the job before which it is moved.
        behind_of: the id of the job behind which it is moved.
        resource_pool: the pool to which it is moved; there is one.
    """

    job_id: str
    priority: int | None = None
    weight: float | None = None
    ahead_of: str | None = None
    behind_of: str | None = None
    resource_pool: str | None = None


def update_queue(store: Store, queue: LiveQueue, updates: Sequence[QueueUpdate]) -> None:
    """Change jobs, all of them or none.

    Args:
        store: the database.
        queue: the places of jobs that were never moved.
        updates: the changes, in this order.

    Raises:
        NotFoundError: a job is neither waiting nor running.
        InvalidArgumentError: a value is invalid, or a job cannot be moved there.
    """
    for update in updates:
        _check(update)
    with queue.view() as known:
        orders = {job.id: job.order for job in known.jobs.values() if not job.is_over}
    with store.writing() as tx:
        for update in updates:
            row = _find(tx, update.job_id)
            _set_resources(row, update)
            anchor = update.ahead_of or update.behind_of
            if anchor:
                _move(tx, row, _find(tx, anchor), orders, is_ahead=update.ahead_of is not None)
        tx.notify(WORK)


def moved(line: Sequence[tuple[str, int]], job_id: str, anchor: str, *, is_ahead: bool) -> Mapping[str, int]:
    """Return the new places of jobs so that one of them is just before or behind another one.

    Args:
        line: jobs and their places, smaller is earlier.
        job_id: the job that moves.
        anchor: the job that it moves to.
        is_ahead: whether it goes before it; otherwise behind it.

    Returns:
        Places of the job, of `anchor`, and of those that have to make room.
    """
    places = dict(line)
    names = sorted((name for name in places if name != job_id), key=lambda name: (places[name], name))
    index = names.index(anchor) + (not is_ahead)
    before = places[names[index - 1]] if index else None
    behind = places[names[index]] if index < len(names) else None
    if before is None:
        assert behind is not None
        found = behind - 1
    elif behind is None:
        found = before + 1
    else:
        found = (before + behind) // 2 if behind - before > 1 else before + 1
    changed = {anchor: places[anchor], job_id: found}
    last = found
    for name in names[index:]:
        if places[name] > last:
            break
        changed[name] = last = last + 1
    return changed


def _check(update: QueueUpdate) -> None:
    if update.priority is not None and not 1 <= update.priority <= 99:
        raise InvalidArgumentError(f"`priority` must be 1 to 99, received {update.priority}.")
    if update.weight is not None and not (math.isfinite(update.weight) and update.weight > 0):
        raise InvalidArgumentError(f"`weight` must be a number above 0, received {update.weight}.")
    if update.resource_pool not in (None, "", POOL):
        raise InvalidArgumentError(
            f"There is no resource pool {update.resource_pool!r}: this master has one, {POOL!r}."
        )
    if update.ahead_of and update.behind_of:
        raise InvalidArgumentError("A job moves either ahead of another job or behind one, not both.")
    if update.job_id in (update.ahead_of, update.behind_of):
        raise InvalidArgumentError("A job cannot move ahead of itself or behind itself.")


def _find(tx: Transaction, job_id: str) -> ExperimentRow | TaskRow:
    experiment = tx.scalar(
        select(ExperimentRow).where(
            ExperimentRow.job_id == job_id,
            ExperimentRow.state.not_in(states.TERMINAL),
            ExperimentRow.is_unmanaged.is_(False),
        )
    )
    if experiment is not None:
        return experiment
    task = tx.scalar(
        select(TaskRow).where(
            TaskRow.job_id == job_id, TaskRow.kind != jobs.TRIAL, TaskRow.end_time.is_(None)
        )
    )
    if task is None:
        raise NotFoundError(f"job '{job_id}' not found in the queue; `det job list` shows all")
    return task


def _set_resources(row: ExperimentRow | TaskRow, update: QueueUpdate) -> None:
    changes = {"priority": update.priority, "weight": update.weight}
    given = {name: value for name, value in changes.items() if value is not None}
    if given:
        config = row.config or {}
        row.config = {**config, "resources": {**(config.get("resources") or {}), **given}}


def _move(
    tx: Transaction,
    row: ExperimentRow | TaskRow,
    anchor: ExperimentRow | TaskRow,
    orders: dict[str, int],
    *,
    is_ahead: bool,
) -> None:
    for job in (row, anchor):
        if job.job_id not in orders:
            raise InvalidArgumentError(f"Job {job.job_id!r} is paused: only jobs in the queue can be moved.")
    if _priority(row) != _priority(anchor):
        raise InvalidArgumentError(
            f"Jobs of different priorities keep their order: {row.job_id!r} has {_priority(row)} and "
            f"{anchor.job_id!r} has {_priority(anchor)}. Change the priority instead."
        )
    changed = moved(list(orders.items()), row.job_id, anchor.job_id, is_ahead=is_ahead)
    orders.update(changed)
    for job_id, place in changed.items():
        _find(tx, job_id).queue_position = place


def _priority(row: ExperimentRow | TaskRow) -> int:
    return ((row.config or {}).get("resources") or {}).get("priority") or DEFAULT_PRIORITY
