"""The policy `priority`: a smaller priority number goes first.

Among jobs with the same priority, the job with the fewest slots in use goes first, then the earliest request: a search
with a hundred trials does not keep a single job waiting.

The run time of a task is unknown, so small tasks that pass a large task which does not fit yet may delay it. They may
pass, so that slots do not stay idle, but not without limit (`walk.Walk`).
"""

from __future__ import annotations

from collections.abc import Sequence

from det_keras.master.tasks.scheduling.base import Plan, Policy, Preemption
from det_keras.master.tasks.scheduling.preemption import Room, can_stop, find_room
from det_keras.master.tasks.scheduling.queue import Job, Key, Queue, Running
from det_keras.master.tasks.scheduling.walk import Walk, cancel_lost, start_reserved


class PriorityPolicy(Policy):
    """Slots by priority.

    Args:
        preemption: whether a waiting task may have tasks of larger priority numbers stopped.
    """

    name = "priority"

    def __init__(self, *, preemption: bool = False) -> None:
        self.preemption = preemption

    def key(self, job: Job) -> Key:
        """Return the place of a job in the queue."""
        return job.facts.priority, job.in_use, job.order

    def plan(self, queue: Queue) -> Plan:
        """Decide what happens now, and apply it to `queue`."""
        plan = Plan()
        cancel_lost(queue)
        # A reservation that is cancelled for a higher priority changes the order behind the walk.
        while self._pass(queue, plan):
            pass
        # What starts before the walk would be stopped by the next one, if a task of higher priority waits.
        start_reserved(queue, plan)
        return plan

    def _pass(self, queue: Queue, plan: Plan) -> bool:
        """Walk through the queue once; return whether a reservation was cancelled."""
        walk = Walk(queue, plan)
        is_cancelled = False
        while (job := walk.next()) is not None:
            if walk.start(job):
                continue
            if job.first.excluded:
                # Others of its size may fit where it may not run.
                walk.skip()
                continue
            before = len(queue.reservations)
            if self.preemption and job.facts.slots and self._make_room(queue, plan, job):
                is_cancelled |= len(queue.reservations) <= before
                walk.again()
            else:
                walk.lend(job)
        return is_cancelled

    def _make_room(self, queue: Queue, plan: Plan, job: Job) -> bool:
        """Reserve slots of tasks with lower priority for a job's first task; return whether there are enough."""
        priority = job.facts.priority
        lower = [task_id for task_id, other in queue.reservations.items() if other.facts.priority > priority]
        has_losable = any(p > priority and count for p, count in queue.losable.items())
        # What stops for an earlier task may leave enough for this one besides.
        if not lower and not has_losable and not queue.stopping:
            return False
        candidates = [
            (other, task)
            for other in queue.jobs.values()
            if other.facts.is_preemptible and other.facts.priority > priority
            for task in other.running.values()
            # In the order of priority, no task that starts with this plan has to stop for a later one.
            if can_stop(task) and task.start >= 0
        ]
        # The lowest priority first, and of equal ones the latest start: it loses least.
        candidates.sort(
            key=lambda pair: (pair[0].facts.priority, pair[1].start, pair[1].task_id), reverse=True
        )
        room = self._find_room(queue, job, candidates, lower)
        if room is None:
            return False
        for _, task in room.victims:
            queue.stop(task.task_id)
            reason = f"{job.facts.label}, which has priority {priority}"
            plan.preemptions.append(Preemption(task.task_id, reason))
        queue.reserve(job, room.shares)
        return True

    def _find_room(
        self, queue: Queue, job: Job, candidates: Sequence[tuple[Job, Running]], lower: Sequence[str]
    ) -> Room | None:
        """Return slots for a job; if there are not enough, cancel reservations of lower priority for it."""
        cancelled = []
        order = sorted(lower, key=lambda task_id: (queue.reservations[task_id].facts.priority, task_id))
        while True:
            room = find_room(queue, job.facts.slots, candidates, lambda *_: True)
            if room is not None or not order:
                break
            worst = order.pop()
            cancelled.append((queue.reservations[worst], queue.reservations[worst].reserved[worst]))
            queue.cancel(worst)
        if room is None:
            # It was in vain.
            for other, shares in reversed(cancelled):
                queue.reserve(other, shares)
        return room
