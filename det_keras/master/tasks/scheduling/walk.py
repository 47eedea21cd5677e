"""Walking through the waiting jobs in order, size by size, and what both policies do on the way."""

from __future__ import annotations

import heapq
import math

from det_keras.master.tasks.scheduling.base import Grant, Plan
from det_keras.master.tasks.scheduling.queue import Job, Key, Queue


class Walk:
    """The jobs with a waiting task, in order. If a job does not fit, all others of its size are left out.

    A task that does not fit lends as many slots as it needs itself to tasks behind it, once. After that every slot
    that becomes free is kept for it. Among waiting tasks of one size, the first lends.

    Args:
        queue: the jobs.
        plan: what is decided is added here.
    """

    def __init__(self, queue: Queue, plan: Plan) -> None:
        self._queue = queue
        self._plan = plan
        self._skipped = dict.fromkeys(queue.ranked, 0)
        self._heap: list[tuple[tuple[Key, str], int]] = [
            (entries[0], size) for size, entries in queue.ranked.items()
        ]
        heapq.heapify(self._heap)
        # The number of slots that waiting tasks which do not fit still leave to later tasks.
        self._slots_left = math.inf

    def next(self) -> Job | None:
        """Return the first job that may fit; None at the end. Call one of the other methods then."""
        while self._heap:
            entry, size = self._heap[0]
            if size > self._slots_left or not self._queue.cluster.can_hold(size):
                # One larger than the pool waits for it to grow, and keeps no slots free.
                heapq.heappop(self._heap)
            else:
                return self._queue.jobs[entry[1]]
        return None

    def start(self, job: Job) -> bool:
        """Start the job's first task if it fits; return whether it does."""
        shares = self._queue.cluster.take(job.facts.slots, job.first.excluded)
        if shares is None:
            return False
        self._plan.grants.append(Grant(self._queue.grant(job, shares), shares))
        self._slots_left -= job.facts.slots
        self.again()
        return True

    def lend(self, job: Job) -> None:
        """Leave out the jobs of this size: the first of them does not fit."""
        _, size = heapq.heappop(self._heap)
        first = job.first
        self._slots_left = min(self._slots_left, max(0, size - self._queue.overtaken_slots(first)))

    def skip(self) -> None:
        """Continue with the next job."""
        self._skipped[self._heap[0][1]] += 1
        self.again()

    def again(self) -> None:
        """Continue after the queue was changed: the same job may have another place now."""
        _, size = heapq.heappop(self._heap)
        entries = self._queue.ranked.get(size, [])
        place = self._skipped[size]
        if place < len(entries):
            heapq.heappush(self._heap, (entries[place], size))


def start_reserved(queue: Queue, plan: Plan) -> None:
    """Start the tasks whose reserved slots are free."""
    for task_id in list(queue.reservations):
        shares = queue.reservations[task_id].reserved[task_id]
        if all(queue.cluster.claims(share.node, slot) == 1 for share in shares for slot in share.slot_ids):
            plan.grants.append(Grant(task_id, queue.grant_reserved(task_id)))


def cancel_lost(queue: Queue) -> None:
    """Cancel the reservations that cannot come true."""
    leaving = {
        (share.node, slot)
        for task_id, job in queue.stopping.items()
        for share in job.running[task_id].shares
        for slot in share.slot_ids
    }
    for task_id in list(queue.reservations):
        shares = queue.reservations[task_id].reserved[task_id]
        slots = [(share.node, slot) for share in shares for slot in share.slot_ids]
        used = [slot for slot in slots if queue.cluster.claims(*slot) > 1]
        if not all(queue.cluster.has(*slot) for slot in slots) or not leaving.issuperset(used):
            queue.cancel(task_id)
