"""The policy `fair_share`: slots by weight between jobs.

The share of a job is its part of all slots in proportion to its weight, and no more than it asks for; what a job does
not ask for is shared by the others. Jobs below their shares go first. Slots that no job below its share can use are
given to the others.

A running task is preempted in two cases. A job that lacks a whole task or more of its share takes slots of jobs above
their shares. A job that lacks less than that takes slots of jobs that exceed their shares by a whole task or more.
Either lessens the number of whole tasks by which the jobs miss their shares, so preemptions come to an end, and a task
that was preempted does not take its slots back. In the end every job is within the size of one task of its share,
unless nodes or tasks that cannot be preempted prevent it.
"""

from __future__ import annotations

from det_keras.master.tasks.scheduling.base import Plan, Policy, Preemption
from det_keras.master.tasks.scheduling.preemption import can_stop, find_room
from det_keras.master.tasks.scheduling.queue import Job, Key, Queue, Running
from det_keras.master.tasks.scheduling.walk import Walk, cancel_lost, start_reserved

# Weights are floating-point numbers.
_TOLERANCE = 1e-9


class FairSharePolicy(Policy):
    """Slots by weight; priorities have no effect."""

    name = "fair_share"

    def key(self, job: Job) -> Key:
        """Return the place of a job in the queue.

        One slot more for each: a heavier job is the first to start, and a large task is not behind the small ones.
        """
        return (job.active + 1) / job.facts.weight, job.order

    def plan(self, queue: Queue) -> Plan:
        """Decide what happens now, and apply it to `queue`."""
        plan = Plan()
        decided: object = None
        # Slots that are given to others in the second pass may put these above their shares, for the first pass.
        # Each further turn reserves slots for one more task, so it comes to an end.
        while decided != (decided := (list(plan.grants), len(plan.preemptions), list(queue.reservations))):
            cancel_lost(queue)
            start_reserved(queue, plan)
            level = slots_per_weight(queue)
            self._pass(queue, plan, level, is_backfill=False)
            self._pass(queue, plan, level, is_backfill=True)
        return plan

    def _pass(self, queue: Queue, plan: Plan, level: float, *, is_backfill: bool) -> None:
        walk = Walk(queue, plan)
        while (job := walk.next()) is not None:
            is_below = _lacks(job, level) > _TOLERANCE
            if is_below == is_backfill and job.facts.slots:
                if is_backfill and not queue.cluster.fits(job.facts.slots):
                    # It was considered in the first pass, and lends.
                    walk.lend(job)
                else:
                    walk.skip()
            elif walk.start(job):
                pass
            elif job.first.excluded:
                # Others of its size may fit where it may not run.
                walk.skip()
            elif not is_backfill and self._make_room(queue, plan, job, level):
                walk.again()
            else:
                walk.lend(job)

    def _make_room(self, queue: Queue, plan: Plan, job: Job, level: float) -> bool:
        """Reserve slots of jobs above their shares for a job's first task; return whether there are enough."""
        above = []
        for used, job_id in reversed(queue.levels):
            if used <= level + _TOLERANCE:
                break
            above.append(queue.jobs[job_id])
        if not above:
            return False
        lacks_whole_task = _lacks(job, level) >= job.facts.slots - _TOLERANCE

        def may_lose(other: Job, lost: int, task: Running) -> bool:
            excess = -_lacks(other, level) - lost
            if lacks_whole_task:
                return excess > _TOLERANCE
            return excess >= task.slots - _TOLERANCE

        candidates = [
            (other, task)
            for other in above
            for task in sorted(other.running.values(), key=lambda task: (-task.start, task.task_id))
            if can_stop(task)
        ]
        room = find_room(queue, job.facts.slots, candidates, may_lose)
        if room is None:
            return False
        for _, task in room.victims:
            if task.start < 0:
                # Its start was decided in this plan: it is taken back.
                queue.revoke(task.task_id)
                plan.grants = [grant for grant in plan.grants if grant.task_id != task.task_id]
                continue
            queue.stop(task.task_id)
            reason = (
                f"{job.facts.label}, which has fewer slots than its weight of {job.facts.weight:g} gives it"
            )
            plan.preemptions.append(Preemption(task.task_id, reason))
        queue.reserve(job, room.shares)
        return True


def slots_per_weight(queue: Queue) -> float:
    """Return how many slots each unit of weight gets; a job gets no more than it asks for.

    Jobs that ask for less than that, in proportion to their weights, get what they ask for.
    """
    slots, weight = float(queue.cluster.total), sum(sums[1] for sums in queue.quotients.values())
    for quotient, (demand, of_weight, _) in sorted(queue.quotients.items()):
        if slots <= 0 or quotient * weight >= slots:
            return max(0.0, slots) / weight if weight > 0 else 0.0
        slots -= demand
        weight -= of_weight
    # There are enough slots for all.
    return float("inf")


def _lacks(job: Job, level: float) -> float:
    """Return by how many slots a job is below its share; negative above it."""
    return min(float(job.demand), level * job.facts.weight) - job.active
