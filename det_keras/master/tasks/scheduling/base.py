"""The contract of a scheduling policy: values in, decisions out, without a clock and without I/O.

A policy decides on a `Queue`, the jobs with their waiting and running tasks and the slots of the pool. It applies its
decisions to the queue at once, so that planning costs what is decided, not what waits. The dispatcher carries them out
and corrects the queue where that was not possible.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

from det_keras.master.resources import Share
from det_keras.master.tasks.scheduling.queue import Job, Key, Queue


@dataclass(frozen=True)
class Grant:
    """The slots that a task is given."""

    task_id: str
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class Preemption:
    """A running task that is asked to stop, so that another one gets its slots.

    Attributes:
        task_id: the running task.
        reason: for its user, such as "experiment 5, which has priority 10".
    """

    task_id: str
    reason: str


@dataclass
class Plan:
    """What happens now.

    Attributes:
        grants: the tasks that start.
        preemptions: the tasks that are asked to stop.
    """

    grants: list[Grant] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)


class Policy(abc.ABC):
    """Decides which waiting task gets which slots, and which running task gives up its own."""

    #: Its name on the command line and in the REST API.
    name = ""

    @abc.abstractmethod
    def key(self, job: Job) -> Key:
        """Return the place of a job in the queue, which only changes with the job itself."""

    @abc.abstractmethod
    def plan(self, queue: Queue) -> Plan:
        """Decide what happens now, and apply it to `queue`.

        A preempted task stays in the queue as one that is stopping. The task that gets its slots holds them as a
        reservation and starts in a later plan, when they are free.
        """
