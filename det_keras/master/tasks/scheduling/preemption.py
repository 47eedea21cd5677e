"""Where a task gets slots that others use: which running tasks would have to stop for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from det_keras.master.resources import Share
from det_keras.master.tasks.scheduling.queue import Job, Queue, Running

#: Returns whether a job that already loses a number of slots may lose a further task.
MayLose = Callable[[Job, int, Running], bool]


@dataclass(frozen=True)
class Room:
    """Slots for a task that are in use.

    Attributes:
        shares: the slots.
        victims: the tasks that have to stop; empty if those that use the slots are stopping already.
    """

    shares: tuple[Share, ...]
    victims: tuple[tuple[Job, Running], ...]


def can_stop(task: Running) -> bool:
    """Return whether stopping a task frees slots that are not about to be free."""
    return not task.is_stopping and task.slots > 0


def find_room(
    queue: Queue, slots: int, candidates: Sequence[tuple[Job, Running]], may_lose: MayLose
) -> Room | None:
    """Return the slots that cost others least; None if there are not enough.

    Slots that are free, and those of tasks that are stopping, cost nothing.

    Args:
        queue: the slots and who uses them.
        slots: number of slots of the task that needs them.
        candidates: the tasks that may be stopped, those first that should be stopped first.
        may_lose: which of them, one after another.
    """
    leaving = _leaving(queue)
    if slots > queue.cluster.largest:
        return _of_several_nodes(queue, slots, candidates, may_lose, leaving)
    on_node: dict[str, list[tuple[Job, Running]]] = defaultdict(list)
    for job, task in candidates:
        for share in task.shares:
            if _usable(queue, share):
                on_node[share.node].append((job, task))
    best: tuple[int, int, str] | None = None
    chosen: Sequence[tuple[Job, Running]] = ()
    for node in queue.cluster.nodes:
        lacking = slots - len(queue.cluster.unused(node)) - len(leaving.get(node, ()))
        victims = _victims(queue, on_node.get(node, ()), lacking, may_lose, node)
        if victims is None:
            continue
        cost = (sum(task.slots for _, task in victims), len(victims), node)
        if best is None or cost < best:
            best, chosen = cost, victims
    if best is None:
        return None
    node = best[2]
    numbers = [*queue.cluster.unused(node), *leaving.get(node, ()), *_slots_on(queue, chosen, node)]
    share = Share(node, tuple(sorted(numbers[:slots])), queue.cluster.address(node))
    return Room((share,), tuple(chosen))


def _of_several_nodes(
    queue: Queue,
    slots: int,
    candidates: Sequence[tuple[Job, Running]],
    may_lose: MayLose,
    leaving: dict[str, list[int]],
) -> Room | None:
    names = set(queue.cluster.nodes)
    lacking = slots - queue.cluster.free - sum(len(leaving.get(name, ())) for name in names)
    frees = [pair for pair in candidates if _count(queue, pair[1], None)]
    victims = _victims(queue, frees, lacking, may_lose, None)
    if victims is None:
        return None
    numbers = {
        name: [*queue.cluster.unused(name), *leaving.get(name, ()), *_slots_on(queue, victims, name)]
        for name in names
    }
    shares = []
    for name in sorted(numbers, key=lambda name: (-len(numbers[name]), name)):
        part = tuple(sorted(numbers[name][:slots]))
        if part:
            shares.append(Share(name, part, queue.cluster.address(name)))
            slots -= len(part)
    return None if slots else Room(tuple(shares), tuple(victims))


def _victims(
    queue: Queue,
    candidates: Sequence[tuple[Job, Running]],
    lacking: int,
    may_lose: MayLose,
    node: str | None,
) -> list[tuple[Job, Running]] | None:
    """Return tasks that together free `lacking` slots on a node, or on all; None if there are not enough."""
    found: list[tuple[Job, Running]] = []
    lost: Counter[str] = Counter()
    for job, task in candidates:
        if lacking <= 0:
            break
        if may_lose(job, lost[job.id], task):
            found.append((job, task))
            lost[job.id] += task.slots
            lacking -= _count(queue, task, node)
    if lacking > 0:
        return None
    # A large task that was added last may make earlier ones unnecessary.
    for job, task in list(reversed(found)):
        if lacking + _count(queue, task, node) <= 0:
            found.remove((job, task))
            lacking += _count(queue, task, node)
    return found


def _usable(queue: Queue, share: Share) -> list[int]:
    """Return the slots of a share that another task may be given: not those that are draining."""
    return [slot for slot in share.slot_ids if queue.cluster.has(share.node, slot)]


def _count(queue: Queue, task: Running, node: str | None) -> int:
    return sum(len(_usable(queue, share)) for share in task.shares if node in (None, share.node))


def _slots_on(queue: Queue, tasks: Sequence[tuple[Job, Running]], node: str) -> list[int]:
    return sorted(
        slot
        for _, task in tasks
        for share in task.shares
        if share.node == node
        for slot in _usable(queue, share)
    )


def _leaving(queue: Queue) -> dict[str, list[int]]:
    """Return the slots of tasks that are stopping which are not held for a waiting task, by node."""
    found: dict[str, list[int]] = defaultdict(list)
    for task_id, job in queue.stopping.items():
        for share in job.running[task_id].shares:
            for slot in _usable(queue, share):
                if queue.cluster.claims(share.node, slot) == 1:
                    found[share.node].append(slot)
    return found
