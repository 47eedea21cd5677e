"""States of experiments, trials, checkpoints and allocations, by their names in the protocol without its prefix.

`named` gives a state as calls have it, ``STATE_ACTIVE``, and `bare` takes the prefix off.

Source: the tables of Determined 0.38.1's protocol.
"""

from __future__ import annotations

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

QUEUED = "QUEUED"
SCHEDULED = "SCHEDULED"
STARTING = "STARTING"
RUNNING = "RUNNING"
TERMINATING = "TERMINATING"
TERMINATED = "TERMINATED"
PARTIALLY_DELETED = "PARTIALLY_DELETED"
UNSPECIFIED = "UNSPECIFIED"

_PREFIX = "STATE_"

#: States of experiments and trials that have ended.
TERMINAL = frozenset({COMPLETED, CANCELED, ERROR})
#: States of experiments and trials that nobody has asked to end.
GOING_ON = frozenset({ACTIVE, PAUSED})
#: All states of experiments and trials that have not ended, in which they wait, run or are being ended.
UNFINISHED = frozenset(
    {ACTIVE, PAUSED, STOPPING_COMPLETED, STOPPING_CANCELED, STOPPING_KILLED, STOPPING_ERROR}
)


def named(state: str) -> str:
    """Return a state as calls have it."""
    return _PREFIX + state


def bare(state: str) -> str:
    """Return a state that a master returned, with or without its prefix, without it."""
    return state.removeprefix(_PREFIX)


def is_over(state: str) -> bool:
    """Return whether a state that a master returned, with or without its prefix, is final."""
    return bare(state) in TERMINAL | {DELETED}


def is_stopping(state: str) -> bool:
    """Return whether a state, with or without its prefix, is one of an experiment or trial that is about to end."""
    return bare(state).startswith("STOPPING_")
