"""The scheduler: decides which waiting task gets which slots, as a pure function of the current state.

A smaller priority number goes first. Among owners with the same priority, the owner with the fewest slots in use
goes first, then the earliest request: a search with a hundred trials does not keep a single job waiting.

The run time of a task is unknown, so small tasks that pass a large task which does not fit yet may delay it.
They may pass, so that slots do not stay idle, but not without limit: a waiting task lends as many slots as it
needs itself, once. After that every slot that becomes free is kept for it until it fits.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["DEFAULT_PRIORITY", "Grant", "Request", "plan"]

#: The default priority; smaller runs first.
DEFAULT_PRIORITY = 42


@dataclass(frozen=True)
class Request:
    """A task that waits for slots.

    Attributes:
        task_id: the id of the task.
        owner: the experiment or job that it belongs to; fairness is between owners.
        slots: number of slots that it needs; a task with 0 always fits.
        order: time of the request; smaller is earlier.
        priority: smaller runs first.
        max_slots: maximum number of slots that its owner may use at once; None for no limit.
        overtaken_slots: number of slots that other tasks were given since it began to wait.
    """

    task_id: str
    owner: str
    slots: int
    order: int
    priority: int = DEFAULT_PRIORITY
    max_slots: int | None = None
    overtaken_slots: int = 0


@dataclass(frozen=True)
class Grant:
    """The slots that a task is given."""

    task_id: str
    slot_ids: tuple[int, ...]


def plan(
    requests: Sequence[Request], free_slots: Sequence[int], in_use: Mapping[str, int], total_slots: int
) -> list[Grant]:
    """Return the tasks that start now.

    Args:
        requests: all waiting tasks.
        free_slots: the unused slots.
        in_use: number of slots in use by owner.
        total_slots: number of slots of the pool; a task that needs more waits, and keeps no slots free.
    """
    free = sorted(free_slots)
    used = Counter(in_use)
    queue = [(_rank(request, used), index) for index, request in enumerate(requests)]
    heapq.heapify(queue)
    # The number of slots that waiting tasks which do not fit still leave to later tasks.
    slots_left = math.inf
    grants = []
    while queue:
        rank, index = heapq.heappop(queue)
        request = requests[index]
        if rank != _rank(request, used):
            # Its owner was given slots since it was queued: queue it again with its current rank.
            heapq.heappush(queue, (_rank(request, used), index))
        elif _is_limited(request, used) or request.slots > total_slots:
            continue
        elif request.slots > len(free):
            slots_left = min(slots_left, max(0, request.slots - request.overtaken_slots))
        elif request.slots <= slots_left:
            grants.append(Grant(request.task_id, tuple(free[: request.slots])))
            free = free[request.slots :]
            used[request.owner] += request.slots
            slots_left -= request.slots
    return grants


def _rank(request: Request, used: Mapping[str, int]) -> tuple[int, int, int]:
    return request.priority, used[request.owner], request.order


def _is_limited(request: Request, used: Mapping[str, int]) -> bool:
    return request.max_slots is not None and used[request.owner] + request.slots > request.max_slots
