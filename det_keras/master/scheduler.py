"""Who gets which slots next; a pure function of who waits and who runs.

Between owners of the same priority the one that uses least goes first, then the one that came first: a search of
a hundred trials does not keep a job of one waiting. Who is next but does not fit keeps the free slots waiting,
so that big tasks are not starved by small ones.
"""

from __future__ import annotations

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
    """

    task_id: str
    owner: str
    slots: int
    order: int
    priority: int = DEFAULT_PRIORITY
    max_slots: int | None = None


@dataclass(frozen=True)
class Grant:
    """The slots that a task gets."""

    task_id: str
    slot_ids: tuple[int, ...]


def plan(requests: Sequence[Request], free_slots: Sequence[int], in_use: Mapping[str, int]) -> list[Grant]:
    """Return who starts now.

    Args:
        requests: everybody who waits.
        free_slots: the slots that nobody uses.
        in_use: how many slots each owner uses.
    """
    free = sorted(free_slots)
    used = Counter(in_use)
    waiting = list(requests)
    grants = []
    blocked = False
    while waiting:
        request = min(waiting, key=lambda one: (one.priority, used[one.owner], one.order))
        waiting.remove(request)
        if request.max_slots is not None and used[request.owner] + request.slots > request.max_slots:
            continue
        blocked = blocked or request.slots > len(free)
        if request.slots > 0 and blocked:
            continue
        grants.append(Grant(request.task_id, tuple(free[: request.slots])))
        free = free[request.slots :]
        used[request.owner] += request.slots
    return grants
