"""What keeps a waiting task waiting, in one line, in slots."""

from __future__ import annotations

from collections.abc import Mapping

from det_keras.master.tasks.scheduling.queue import Job, Queue


def wait_reason(queue: Queue, job: Job, ahead: int) -> str:
    """Return what keeps the next task of a job waiting; empty if none of its tasks waits.

    Args:
        queue: the queue.
        job: one of its jobs.
        ahead: number of waiting tasks that are before it.
    """
    slots, cluster = job.facts.slots, queue.cluster
    wanted = "a slot" if slots == 1 else f"{slots} slots"
    if job.reserved and not job.line:
        return f"waits for {wanted} that preempted tasks are leaving"
    if not job.line:
        return ""
    if job.is_limited:
        return f"waits: it may use {job.facts.max_slots} slots at once (`resources.max_slots`)"
    if slots > cluster.total:
        return f"waits for {wanted}: the cluster has {cluster.total} now"
    where = " on one machine" if 1 < slots <= cluster.largest and len(cluster.nodes) > 1 else ""
    tasks = "1 task is" if ahead == 1 else f"{ahead or 'no'} tasks are"
    return f"waits for {wanted}{where}: {cluster.free} of {cluster.total} are free, {tasks} ahead"


def tasks_ahead(queue: Queue) -> Mapping[str, int]:
    """Return the number of waiting tasks before the next task of each job, by job, in the order of the queue.

    Tasks that get no slots now, however many become free, are not counted: those larger than the cluster, and those of
    jobs that use as many slots as they may.
    """
    ahead: dict[str, int] = {}
    count = 0
    for job in queue.in_order():
        ahead[job.id] = count
        if job.facts.slots <= queue.cluster.total and not job.is_limited:
            count += len(job.line)
    return ahead
