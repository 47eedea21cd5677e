"""The jobs that wait for slots or use them, kept in order: what a policy decides on.

A *job* is an experiment or a generic job. All tasks of a job need the same number of slots. A change of one task costs
the search for its place in sorted lists, whatever else waits.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from det_keras.master.resources import Share
from det_keras.master.tasks.scheduling.cluster import Cluster

#: The name of the only resource pool.
POOL = "default"

#: The default priority; smaller runs first.
DEFAULT_PRIORITY = 42

#: The place of a job in the queue; smaller is earlier.
Key = tuple[float, ...]

# Starts that are remembered. A task that has waited for more of them has lent all that it lends, unless it needs more
# slots than this.
_MOST_STARTS = 65_536


@dataclass(frozen=True)
class JobFacts:
    """What a job asks for.

    Attributes:
        slots: number of slots that each of its tasks needs; a task with 0 always fits.
        priority: smaller runs first.
        weight: its share of the slots in proportion to the other jobs, for the fair share.
        max_slots: maximum number of slots that it may use at once; None for no limit.
        position: its place among jobs that are otherwise equal; None for the time of its earliest waiting task.
        is_preemptible: whether its tasks can stop and resume.
        label: its name for users.
        submitted: the time of its submission.
    """

    slots: int
    priority: int = DEFAULT_PRIORITY
    weight: float = 1.0
    max_slots: int | None = None
    position: int | None = None
    is_preemptible: bool = False
    label: str = ""
    submitted: int = 0


#: The place of a task among those of its job that wait: whether nodes are excluded, the time of its request, its id.
LineKey: TypeAlias = tuple[bool, int, str]


@dataclass(frozen=True)
class Waiting:
    """A task that waits for slots.

    Attributes:
        task_id: the id of the task.
        order: time of the request; smaller is earlier.
        since: the time since which it waits; later than `order` for a task that has run before.
        excluded: names of the nodes on which it does not run.
    """

    task_id: str
    order: int
    since: int = 0
    excluded: frozenset[str] = frozenset()

    @property
    def line_key(self) -> LineKey:
        """Its place among the waiting tasks of its job: one that not all nodes may run holds back no other."""
        return bool(self.excluded), self.order, self.task_id


@dataclass(frozen=True)
class Running:
    """A task that occupies slots.

    Attributes:
        task_id: the id of the task.
        shares: its slots.
        start: the time of its start.
        is_stopping: whether it was asked to stop, or is being killed.
        is_returning: whether it will wait for slots again after it has stopped.
    """

    task_id: str
    shares: tuple[Share, ...]
    start: int = 0
    is_stopping: bool = False
    is_returning: bool = True

    @property
    def slots(self) -> int:
        """Number of its slots."""
        return sum(len(share.slot_ids) for share in self.shares)


class Job:
    """One job with its tasks; changed by `Queue` only."""

    def __init__(self, job_id: str, facts: JobFacts) -> None:
        self.id = job_id
        self.facts = facts
        # The places of the waiting tasks, earliest first, and all that is known of each.
        self.line: list[LineKey] = []
        self.waiting: dict[str, Waiting] = {}
        self.running: dict[str, Running] = {}
        #: The slots that are held for a task until others have left them, by task.
        self.reserved: dict[str, tuple[Share, ...]] = {}
        #: Whether it has ended, and is kept until its last task has.
        self.is_over = False
        #: Number of slots in use or reserved.
        self.in_use = 0
        #: The same without tasks that are stopping.
        self.active = 0
        #: Number of slots of tasks that are stopping and will wait again.
        self.returning = 0

    @property
    def order(self) -> int:
        """Its place among jobs that are otherwise equal."""
        if self.facts.position is not None:
            return self.facts.position
        return self.first.order if self.line else self.facts.submitted

    @property
    def first(self) -> Waiting:
        """The task that is next; there has to be one."""
        return self.waiting[self.line[0][-1]]

    @property
    def is_limited(self) -> bool:
        """Whether its own limit keeps its next task waiting."""
        most = self.facts.max_slots
        return most is not None and self.in_use + self.facts.slots > most

    @property
    def demand(self) -> int:
        """The number of slots that it would use if there were enough."""
        wanted = self.active + self.returning + len(self.line) * self.facts.slots
        return wanted if self.facts.max_slots is None else max(self.active, min(wanted, self.facts.max_slots))


class _Starts:
    """When tasks were given slots: the newest starts, and the slots of all of them until each."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._sums: list[int] = []
        self._forgotten = 0

    def add(self, time: int, slots: int) -> None:
        """Record a start; nearly always the newest."""
        if not slots:
            return
        place = bisect.bisect_right(self._times, time)
        self._times.insert(place, time)
        self._sums.insert(place, self._before(place))
        for later in range(place, len(self._sums)):
            self._sums[later] += slots
        if len(self._times) > 2 * _MOST_STARTS:
            self._forgotten = self._sums[_MOST_STARTS - 1]
            del self._times[:_MOST_STARTS], self._sums[:_MOST_STARTS]

    def after(self, time: int) -> int:
        """Return the number of slots that were given after a time."""
        if not self._sums:
            return 0
        return self._sums[-1] - self._before(bisect.bisect_right(self._times, time))

    def _before(self, place: int) -> int:
        return self._sums[place - 1] if place else self._forgotten


@dataclass
class _Place:
    """Where a job is listed."""

    size: int
    entry: tuple[Key, str]


class Queue:
    """All jobs, in the order of a policy, and the slots of the pool.

    Args:
        key: the order of the jobs.
        cluster: the slots.
    """

    def __init__(self, key: Callable[[Job], Key], cluster: Cluster) -> None:
        self.cluster = cluster
        self.jobs: dict[str, Job] = {}
        #: The jobs with a task that may start, by their number of slots, in order.
        self.ranked: dict[int, list[tuple[Key, str]]] = {}
        #: The tasks with a reservation, and the job of each.
        self.reservations: dict[str, Job] = {}
        #: The tasks that are stopping, and the job of each.
        self.stopping: dict[str, Job] = {}
        #: Number of slots that preemptible tasks use, by priority.
        self.losable: Counter[int] = Counter()
        #: The jobs with running tasks, by slots for each unit of weight.
        self.levels: list[tuple[float, str]] = []
        # For the fair share: demand and weight of all jobs with the same quotient of the two.
        self.quotients: dict[float, list[float]] = {}
        self._key = key
        self._places: dict[str, _Place] = {}
        self._owners: dict[str, Job] = {}
        self._counted: dict[str, tuple[float | None, float | None, int, float, int]] = {}
        self._starts = _Starts()
        # The tasks that start now, each with its slots and its request: the time of its start is unknown.
        self._unconfirmed: dict[str, tuple[int, Waiting]] = {}
        self._unconfirmed_slots = 0

    def set_job(self, job_id: str, facts: JobFacts) -> None:
        """Add a job, or change what it asks for."""
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = Job(job_id, facts)
        elif job.facts == facts:
            job.is_over = False
            return
        else:
            self._unlist(job)
            if job.facts.slots != facts.slots:
                for task_id in list(job.reserved):
                    self._unreserve(job, task_id)
            job.facts = facts
            job.is_over = False
        self._list(job)

    def drop_job(self, job_id: str) -> None:
        """Remove a job without running tasks; a job with some is kept without its waiting tasks."""
        job = self.jobs.get(job_id)
        if job is None:
            return
        for task_id in [*job.waiting, *job.reserved]:
            self.remove(task_id)
        job.is_over = True
        self._forget(job)

    def wait(self, job_id: str, task: Waiting) -> None:
        """Record that a task waits; a reservation that it has is kept."""
        job = self.jobs[job_id]
        if task.task_id in job.reserved or job.waiting.get(task.task_id) == task:
            job.waiting[task.task_id] = task
            return
        self._take_out(task.task_id)
        self._unlist(job)
        job.waiting[task.task_id] = task
        bisect.insort(job.line, task.line_key)
        self._owners[task.task_id] = job
        self._list(job)

    def run(self, job_id: str, task: Running) -> None:
        """Record that a task occupies slots."""
        job = self.jobs[job_id]
        known = job.running.get(task.task_id)
        if task.task_id in self._unconfirmed or known is None or known.start != task.start:
            self._confirm(task.task_id)
            self._starts.add(task.start, task.slots)
        if known == task:
            return
        self._take_out(task.task_id)
        self._unlist(job)
        self._occupy(job, task)
        self._list(job)

    def remove(self, task_id: str) -> None:
        """Remove a task, whatever it does; no effect if it is unknown."""
        job = self._take_out(task_id)
        if job is not None:
            self._forget(job)

    def _take_out(self, task_id: str) -> Job | None:
        """Remove a task and return its job; None if the task is unknown."""
        job = self._owners.pop(task_id, None)
        if job is None:
            return None
        self._unlist(job)
        self._confirm(task_id)
        if task_id in job.reserved:
            self._unreserve(job, task_id)
        waiting = job.waiting.pop(task_id, None)
        if waiting is not None:
            del job.line[bisect.bisect_left(job.line, waiting.line_key)]
        running = job.running.pop(task_id, None)
        if running is not None:
            self.cluster.give(running.shares)
            self._use(job, running, -1)
        self._list(job)
        return job

    def grant(self, job: Job, shares: tuple[Share, ...]) -> str:
        """Start the first waiting task of a job on slots that were claimed for it; return its id."""
        task_id = job.first.task_id
        self._start(job, task_id, shares)
        return task_id

    def grant_reserved(self, task_id: str) -> tuple[Share, ...]:
        """Start a task on its reserved slots, which are free now; return them."""
        job = self.reservations[task_id]
        shares = job.reserved[task_id]
        self.cluster.claim(shares)
        self._unlist(job)
        self._unreserve(job, task_id)
        self._list(job)
        self._start(job, task_id, shares)
        return shares

    def revoke(self, task_id: str) -> None:
        """Let a task wait again whose start was decided, but has not begun."""
        job = self._owners[task_id]
        _, request = self._unconfirmed[task_id]
        self.wait(job.id, request)

    def reserve(self, job: Job, shares: tuple[Share, ...]) -> None:
        """Hold slots, which others still use, for the first waiting task of a job."""
        self._unlist(job)
        *_, task_id = job.line.pop(0)
        job.reserved[task_id] = shares
        self.reservations[task_id] = job
        self.cluster.claim(shares)
        job.in_use += job.facts.slots
        job.active += job.facts.slots
        self._list(job)

    def cancel(self, task_id: str) -> None:
        """Let a task with a reservation wait again."""
        job = self.reservations[task_id]
        self._unlist(job)
        self._unreserve(job, task_id)
        self._list(job)

    def stop(self, task_id: str) -> None:
        """Record that a task was asked to stop and will wait again."""
        job = self._owners[task_id]
        known = job.running[task_id]
        stopping = Running(task_id, known.shares, known.start, is_stopping=True, is_returning=True)
        self._unlist(job)
        self._use(job, known, -1)
        job.running[task_id] = stopping
        self._use(job, stopping, 1)
        self._list(job)

    def confirm_ended(self, task_id: str, start: int) -> None:
        """Record the last start of a task that does not run, if it is the start that was decided here."""
        slots, request = self._unconfirmed.get(task_id, (0, None))
        if request is not None and start >= request.since:
            self._starts.add(start, slots)

    def remember_start(self, time: int, slots: int) -> None:
        """Record a task that was given slots and has ended."""
        self._starts.add(time, slots)

    def job_of(self, task_id: str) -> Job | None:
        """Return the job of a task that waits or runs; None if it does neither."""
        return self._owners.get(task_id)

    def overtaken_slots(self, task: Waiting) -> int:
        """Return the number of slots that other tasks were given since a task began to wait."""
        return self._starts.after(task.since) + self._unconfirmed_slots

    def in_order(self) -> Iterator[Job]:
        """Yield the jobs with a task that may start, in the order of the policy."""
        for _, job_id in heapq.merge(*self.ranked.values()):
            yield self.jobs[job_id]

    def lacking(self, most: int) -> list[int]:
        """Return the number of slots of each task that waits for slots, in order, of the first `most` tasks.

        Tasks that only the limit of their own job keeps waiting do not belong to them.
        """
        return list(itertools.islice(self._lacking(), most))

    def _lacking(self) -> Iterator[int]:
        for job in self.in_order():
            slots, limit = job.facts.slots, job.facts.max_slots
            count = len(job.line)
            if limit is not None and slots:
                count = min(count, (limit - job.in_use) // slots)
            yield from itertools.repeat(slots, count)

    def _start(self, job: Job, task_id: str, shares: tuple[Share, ...]) -> None:
        self._unlist(job)
        waiting = job.waiting.pop(task_id)
        del job.line[bisect.bisect_left(job.line, waiting.line_key)]
        task = Running(task_id, shares, start=-1)
        # The slots are claimed already.
        self.cluster.give(shares)
        self._occupy(job, task)
        self._unconfirmed[task_id] = task.slots, waiting
        self._unconfirmed_slots += task.slots
        self._list(job)

    def _confirm(self, task_id: str) -> None:
        slots, _ = self._unconfirmed.pop(task_id, (0, None))
        self._unconfirmed_slots -= slots

    def _occupy(self, job: Job, task: Running) -> None:
        self.cluster.claim(task.shares)
        job.running[task.task_id] = task
        self._owners[task.task_id] = job
        self._use(job, task, 1)

    def _forget(self, job: Job) -> None:
        """Drop a job that is over once none of its tasks runs."""
        if job.is_over and not job.running and self.jobs.get(job.id) is job:
            self._unlist(job)
            del self.jobs[job.id]

    def _use(self, job: Job, task: Running, sign: int) -> None:
        slots = task.slots * sign
        job.in_use += slots
        if task.is_stopping:
            if task.is_returning:
                job.returning += slots
            if sign > 0:
                self.stopping[task.task_id] = job
            else:
                self.stopping.pop(task.task_id, None)
        else:
            job.active += slots

    def _unreserve(self, job: Job, task_id: str) -> None:
        """Give up a reservation; the job is not listed meanwhile."""
        self.cluster.give(job.reserved.pop(task_id))
        del self.reservations[task_id]
        job.in_use -= job.facts.slots
        job.active -= job.facts.slots
        bisect.insort(job.line, job.waiting[task_id].line_key)

    def _list(self, job: Job) -> None:
        """Enter a job into the sorted lists."""
        if job.line and not job.is_limited:
            place = _Place(job.facts.slots, (self._key(job), job.id))
            bisect.insort(self.ranked.setdefault(place.size, []), place.entry)
            self._places[job.id] = place
        weight, level, quotient = job.facts.weight, None, None
        losable = job.active if job.facts.is_preemptible else 0
        if losable:
            self.losable[job.facts.priority] += losable
            level = job.active / weight
            bisect.insort(self.levels, (level, job.id))
        demand = job.demand
        if demand:
            quotient = demand / weight
            sums = self.quotients.setdefault(quotient, [0, 0.0, 0])
            sums[0] += demand
            sums[1] += weight
            sums[2] += 1
        self._counted[job.id] = (level, quotient, demand, weight, losable)

    def _unlist(self, job: Job) -> None:
        """Remove a job from the sorted lists, before it changes; no effect if it is in none."""
        place = self._places.pop(job.id, None)
        if place is not None:
            entries = self.ranked[place.size]
            del entries[bisect.bisect_left(entries, place.entry)]
            if not entries:
                del self.ranked[place.size]
        counted = self._counted.pop(job.id, None)
        if counted is None:
            return
        level, quotient, demand, weight, losable = counted
        if losable:
            self.losable[job.facts.priority] -= losable
        if level is not None:
            del self.levels[bisect.bisect_left(self.levels, (level, job.id))]
        if quotient is not None:
            sums = self.quotients[quotient]
            sums[0] -= demand
            sums[1] -= weight
            sums[2] -= 1
            if not sums[2]:
                del self.quotients[quotient]


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
    if not cluster.can_hold(slots):
        # `det slot list` shows which.
        if not slots:
            return "waits for its machine, which is out of use"
        disabled = f", and {cluster.disabled} out of use" if cluster.disabled else ""
        return f"waits for {wanted}: the cluster has {cluster.total} now{disabled}"
    if job.first.excluded:
        names = ", ".join(sorted(job.first.excluded))
        return f"waits for {wanted} on another machine than {names}, which a log policy excluded"
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
        if queue.cluster.can_hold(job.facts.slots) and not job.is_limited:
            count += len(job.line)
    return ahead
