"""Who gets slots next: one file per policy. Decisions are a pure function of the queue."""

from __future__ import annotations

from collections.abc import Mapping

from det_keras.master.tasks.scheduling.base import Grant, Plan, Policy, Preemption
from det_keras.master.tasks.scheduling.cluster import Cluster
from det_keras.master.tasks.scheduling.fair_share import FairSharePolicy
from det_keras.master.tasks.scheduling.priority import PriorityPolicy
from det_keras.master.tasks.scheduling.queue import (
    DEFAULT_PRIORITY,
    POOL,
    Job,
    JobFacts,
    Queue,
    Running,
    Waiting,
    tasks_ahead,
    wait_reason,
)

__all__ = [
    "DEFAULT_PRIORITY",
    "POLICIES",
    "POOL",
    "Cluster",
    "FairSharePolicy",
    "Grant",
    "Job",
    "JobFacts",
    "Plan",
    "Policy",
    "Preemption",
    "PriorityPolicy",
    "Queue",
    "Running",
    "Waiting",
    "make_policy",
    "tasks_ahead",
    "wait_reason",
]

#: The names of the policies; the first is the default.
POLICIES = ("priority", "fair_share")


def make_policy(name: str = POLICIES[0], *, preemption: bool = False) -> Policy:
    """Return the policy with a name.

    Args:
        name: ``priority`` or ``fair_share``.
        preemption: whether `priority` preempts; `fair_share` always does.

    Raises:
        ValueError: there is no policy with this name.
    """
    policies: Mapping[str, Policy] = {
        "priority": PriorityPolicy(preemption=preemption),
        "fair_share": FairSharePolicy(),
    }
    if name not in policies:
        raise ValueError(f"There is no scheduler {name!r}. Use one of: {', '.join(POLICIES)}.")
    return policies[name]
