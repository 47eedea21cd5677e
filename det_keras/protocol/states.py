"""States of experiments and trials, by their names in the protocol without the prefix ``STATE_``.

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

#: States of experiments and trials that have ended.
TERMINAL = frozenset({COMPLETED, CANCELED, ERROR})


def is_over(state: str) -> bool:
    """Return whether a state that a master returned, with or without its prefix, is final."""
    return state.removeprefix("STATE_") in TERMINAL | {DELETED}


def is_stopping(state: str) -> bool:
    """Return whether a state, with or without its prefix, is one of an experiment or trial that is about to end."""
    return state.removeprefix("STATE_").startswith("STOPPING_")
