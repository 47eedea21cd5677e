"""Who gets which slots next; a pure function of who waits and who runs.

Smaller priorities go first. Between owners of the same priority the one that uses least goes first, then the one
that came first: a search of a hundred trials does not keep a job of one waiting.

Nobody knows how long a task will run, so that letting small ones pass a gang that does not fit yet may delay it.
They may pass, lest slots lie idle while a gang waits for the rest, but not for ever: a waiting gang lends as many
slots as it needs itself, once, and then keeps every free one until it fits.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["DEFAULT_PRIORITY", "Grant", "Request", "plan"]

#: Of those who do not say; smaller runs first.
DEFAULT_PRIORITY = 42


@dataclass(frozen=True)
class Request:
    """A task that waits for slots.

    Attributes:
        task_id: of the task.
        owner: the experiment or job that it belongs to; fairness is between owners.
        slots: how many it needs; 0 runs beside everything.
        order: smaller came first.
        priority: smaller runs first.
        max_slots: how many its owner may use at once; None for no limit.
        lent: how many slots others were given since it began to wait.
    """

    task_id: str
    owner: str
    slots: int
    order: int
    priority: int = DEFAULT_PRIORITY
    max_slots: int | None = None
    lent: int = 0


@dataclass(frozen=True)
class Grant:
    """The slots that a task gets."""

    task_id: str
    slot_ids: tuple[int, ...]


def plan(
    requests: Sequence[Request], free_slots: Sequence[int], in_use: Mapping[str, int], total_slots: int
) -> list[Grant]:
    """Return who starts now.

    Args:
        requests: everybody who waits.
        free_slots: the slots that nobody uses.
        in_use: how many slots each owner uses.
        total_slots: how many there are; who needs more waits without keeping any from others.
    """
    free = sorted(free_slots)
    used = Counter(in_use)
    queue = [(_rank(request, used), index) for index, request in enumerate(requests)]
    heapq.heapify(queue)
    # What those who wait and do not fit leave to the others.
    lendable = math.inf
    grants = []
    while queue:
        rank, index = heapq.heappop(queue)
        request = requests[index]
        if rank != _rank(request, used):
            # Its owner was given something since: it goes to the place that it has now.
            heapq.heappush(queue, (_rank(request, used), index))
        elif _is_limited(request, used) or request.slots > total_slots:
            continue
        elif request.slots > len(free):
            lendable = min(lendable, max(0, request.slots - request.lent))
        elif request.slots <= lendable:
            grants.append(Grant(request.task_id, tuple(free[: request.slots])))
            free = free[request.slots :]
            used[request.owner] += request.slots
            lendable -= request.slots
    return grants


def _rank(request: Request, used: Mapping[str, int]) -> tuple[int, int, int]:
    return request.priority, used[request.owner], request.order


def _is_limited(request: Request, used: Mapping[str, int]) -> bool:
    return request.max_slots is not None and used[request.owner] + request.slots > request.max_slots
