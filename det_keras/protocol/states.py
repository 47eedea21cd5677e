"""States of experiments and trials, by the names that travel, without their prefix ``STATE_``.

Source: the tables of Determined 0.38.1's protocol.
"""

from __future__ import annotations

__all__ = [
    "ACTIVE",
    "CANCELED",
    "COMPLETED",
    "DELETED",
    "DELETE_FAILED",
    "DELETING",
    "ERROR",
    "PAUSED",
    "STOPPING_CANCELED",
    "STOPPING_COMPLETED",
    "STOPPING_ERROR",
    "STOPPING_KILLED",
    "TERMINAL",
    "is_over",
]

ACTIVE = "ACTIVE"
PAUSED = "PAUSED"
STOPPING_COMPLETED = "STOPPING_COMPLETED"
STOPPING_CANCELED = "STOPPING_CANCELED"
STOPPING_KILLED = "STOPPING_KILLED"
STOPPING_ERROR = "STOPPING_ERROR"
COMPLETED = "COMPLETED"
CANCELED = "CANCELED"
ERROR = "ERROR"
DELETING = "DELETING"
DELETE_FAILED = "DELETE_FAILED"
DELETED = "DELETED"

#: States in which nothing runs any more.
TERMINAL = frozenset({COMPLETED, CANCELED, ERROR})


def is_over(state: str) -> bool:
    """Return whether a state that a master answered, with its prefix or without it, is the last one."""
    return state.removeprefix("STATE_") in TERMINAL | {DELETED}
