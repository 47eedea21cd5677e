"""Slots and machines out of use: no task is given them until an administrator enables them again.

What runs there is stopped at once, or continues to its end while the slots drain. The rows are kept under the name of
the machine, so they hold after a restart of the master, and for a machine that leaves and joins again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.database.lookups import config_of, find_experiment
from det_keras.master.database.models import AllocationRow, DisabledSlotRow, TrialRow
from det_keras.master.database.notifier import WORK
from det_keras.master.database.store import Transaction
from det_keras.master.errors import NotFoundError
from det_keras.master.resources import Node, ResourcePool, Share
from det_keras.master.tasks import allocations
from det_keras.master.tasks.logs import note

logger = logging.getLogger(__name__)

_WHOLE = -1
# The time for a last checkpoint of a trial whose config gives it none: a machine that is to be repaired should not be
# kept for an hour.
_STOP_S = 60


@dataclass(frozen=True)
class Availability:
    """Which slots are out of use.

    Attributes:
        machines: the machines that are, each with whether it is draining.
        slots: single slots that are, by machine and number.

    It is false if all slots are in use.
    """

    machines: Mapping[str, bool] = field(default_factory=dict)
    slots: Mapping[tuple[str, int], bool] = field(default_factory=dict)

    @classmethod
    def read(cls, session: Session) -> Availability:
        """Return what the database says."""
        rows = session.execute(
            select(DisabledSlotRow.node, DisabledSlotRow.slot, DisabledSlotRow.is_draining)
        ).all()
        return cls(
            {node: is_draining for node, slot, is_draining in rows if slot == _WHOLE},
            {(node, slot): is_draining for node, slot, is_draining in rows if slot != _WHOLE},
        )

    def __bool__(self) -> bool:
        return bool(self.machines or self.slots)

    def has_machine(self, node: str) -> bool:
        """Return whether a machine is in use, whatever its slots are."""
        return node not in self.machines

    def has_slot(self, node: str, slot: int) -> bool:
        """Return whether tasks are given a slot."""
        return node not in self.machines and (node, slot) not in self.slots

    def drains(self, node: str, slot: int) -> bool:
        """Return whether a slot is out of use, and what runs on it continues."""
        return self.machines.get(node, False) or self.slots.get((node, slot), False)

    def usable(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes, each with the slots that are in use only."""
        return [
            replace(node, slots=[slot for slot in node.slots if self.has_slot(node.id, slot.id)])
            for node in nodes
        ]

    def has_all(self, shares: Iterable[Share]) -> bool:
        """Return whether tasks are given all of these slots."""
        return all(self.has_slot(share.node, slot) for share in shares for slot in share.slot_ids)


def disable(
    tx: Transaction, pool: ResourcePool, node: str, slot: int | None = None, *, drains: bool, by: str
) -> None:
    """Give a slot, or the slots of a whole machine, to no task from now on.

    Args:
        tx: the transaction.
        pool: has the machine.
        node: name of the machine.
        slot: number of its slot; None for the whole machine, with its tasks that have no slots.
        drains: whether what runs there continues to its end. Otherwise trials save a checkpoint and wait for other
            slots, and jobs are killed.
        by: name of the user, for the logs.

    Raises:
        NotFoundError: there is no such machine or slot.
    """
    find_node(pool, node)
    number = _WHOLE if slot is None else find_slot(pool, node, slot)
    row = tx.get(DisabledSlotRow, (node, number))
    if row is None:
        tx.add(DisabledSlotRow(node=node, slot=number, is_draining=drains))
    else:
        row.is_draining = drains
    tx.notify(WORK)
    name = f"Machine {node}" if slot is None else f"Slot {slot} of machine {node}"
    logger.info(
        "%s was disabled by %s%s.", name, by, "; what runs there continues to its end" if drains else ""
    )
    if not drains:
        for allocation in allocations.live_allocations(tx):
            if _occupies(pool, allocation, node, slot):
                _stop(tx, allocation, f"{name} was disabled by {by}")


def enable(tx: Transaction, pool: ResourcePool, node: str, slot: int | None = None, *, by: str) -> None:
    """Give a slot, or a machine, to tasks again. Slots of it that were disabled by themselves stay disabled.

    Args:
        tx: the transaction.
        pool: has the machine.
        node: name of the machine.
        slot: number of its slot; None for the whole machine.
        by: name of the user, for the log.

    Raises:
        NotFoundError: there is no such machine or slot.
    """
    find_node(pool, node)
    row = tx.get(DisabledSlotRow, (node, _WHOLE if slot is None else find_slot(pool, node, slot)))
    if row is None:
        return
    tx.delete(row)
    tx.notify(WORK)
    logger.info(
        "%s was enabled by %s.", f"Machine {node}" if slot is None else f"Slot {slot} of machine {node}", by
    )


def stop_misplaced(tx: Transaction, allocation: AllocationRow, shares: Sequence[Share]) -> None:
    """Stop a trial that the pool itself has just placed on slots that were disabled meanwhile; jobs continue."""
    if not Availability.read(tx).has_all(shares) and _trial_of(tx, allocation) is not None:
        _stop(tx, allocation, "It was placed on a slot that had just been disabled")


def find_node(pool: ResourcePool, name: str) -> Node:
    """Return the machine with a name.

    Raises:
        NotFoundError: there is none.
    """
    for node in pool.nodes:
        if node.id == name:
            return node
    raise NotFoundError(f"agent '{name}' not found")


def find_slot(pool: ResourcePool, name: str, slot: int) -> int:
    """Return the number of a slot.

    Raises:
        NotFoundError: there is no such machine or slot.
    """
    if slot not in {known.id for known in find_node(pool, name).slots}:
        raise NotFoundError(f"slot {slot} of agent '{name}' not found")
    return slot


def _occupies(pool: ResourcePool, allocation: AllocationRow, node: str, slot: int | None) -> bool:
    if not allocation.slots:
        return slot is None and node == pool.slotless_node
    return any(
        share.node == node and (slot is None or slot in share.slot_ids)
        for share in allocations.shares_of(allocation)
    )


def _trial_of(session: Session, allocation: AllocationRow) -> TrialRow | None:
    return session.scalar(select(TrialRow).where(TrialRow.task_id == allocation.task_id))


def _stop(tx: Transaction, allocation: AllocationRow, reason: str) -> None:
    """Have a task leave its slots: a trial at a checkpoint, without a restart that counts."""
    trial = _trial_of(tx, allocation)
    if trial is None:
        allocations.kill(tx, allocation)
        note(tx, allocation.task_id, f"{reason}: the job is killed.", "WARNING")
        return
    limit = config_of(find_experiment(tx, trial.experiment_id)).preemption_timeout
    limit = _STOP_S if limit is None else limit
    allocations.preempt(tx, allocation, limit)
    # It may have been asked to stop before, with more time.
    allocations.kill(tx, allocation, after_s=limit)
    note(
        tx,
        allocation.task_id,
        f"{reason}: trial {trial.id} stops. It resumes from its checkpoint when there are slots for it.",
        "WARNING",
    )
