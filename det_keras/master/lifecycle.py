"""The states of experiments and trials, and what the end of a process means, as pure functions.

Source: the state tables of Determined 0.38.1, with this project's changes.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from det_keras.protocol.states import (
    ACTIVE,
    CANCELED,
    COMPLETED,
    DELETE_FAILED,
    DELETING,
    ERROR,
    PAUSED,
    QUEUED,
    RUNNING,
    STARTING,
    STOPPING_CANCELED,
    STOPPING_COMPLETED,
    STOPPING_ERROR,
    STOPPING_KILLED,
    TERMINAL,
    named,
)

# A run lost with its supervisor, or ended by a signal of the machine, does not count as a restart. The limit stops a
# task that kills its own supervisor, or sends itself the signal, each time.
_MOST_LOST_RUNS = 20
# Death by signal N is 128 + N. These ask a process to end: a machine that shuts down, a batch system, `kill`.
_TERMINATED = frozenset(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))

_TERMINAL_OF = {
    STOPPING_COMPLETED: COMPLETED,
    STOPPING_CANCELED: CANCELED,
    STOPPING_KILLED: CANCELED,
    STOPPING_ERROR: ERROR,
}
_SEVERITY = {state: rank for rank, state in enumerate(_TERMINAL_OF)}

_STOPPING = frozenset(_TERMINAL_OF)
_EXPERIMENT_NEXT: dict[str, frozenset[str]] = {
    ACTIVE: _STOPPING | {PAUSED, ERROR},
    PAUSED: _STOPPING | {ACTIVE, ERROR},
    STOPPING_CANCELED: frozenset({CANCELED, STOPPING_KILLED, STOPPING_ERROR, ERROR}),
    STOPPING_KILLED: frozenset({CANCELED, STOPPING_ERROR, ERROR}),
    STOPPING_COMPLETED: frozenset({COMPLETED, STOPPING_ERROR, ERROR}),
    STOPPING_ERROR: frozenset({ERROR}),
    COMPLETED: frozenset({DELETING}),
    CANCELED: frozenset({DELETING}),
    ERROR: frozenset({DELETING}),
    DELETING: frozenset({DELETE_FAILED}),
    DELETE_FAILED: frozenset({DELETING}),
}


def experiment_may_become(state: str, wanted: str) -> bool:
    """Return whether an experiment in `state` may go to `wanted`."""
    return wanted in _EXPERIMENT_NEXT[state]


def trial_may_become(state: str, wanted: str) -> bool:
    """Return whether a trial in `state` may go to `wanted`; a stopping trial only to a more severe stop."""
    if state in TERMINAL:
        return False
    if state in _STOPPING:
        if wanted in _STOPPING:
            return _SEVERITY[wanted] > _SEVERITY[state]
        return wanted in (_TERMINAL_OF[state], ERROR)
    return wanted != state


def unsettled_states(state: str) -> frozenset[str]:
    """Return the states of trials that are to follow an experiment into `state`, but have not yet."""
    if state == ACTIVE:
        return frozenset({PAUSED})
    if state == PAUSED:
        return frozenset({ACTIVE})
    if state in _STOPPING:
        return frozenset(trial for trial in (ACTIVE, PAUSED, *_STOPPING) if trial_may_become(trial, state))
    return frozenset()


def terminal_of(stopping: str) -> str:
    """Return the terminal state that follows a stopping state."""
    return _TERMINAL_OF[stopping]


def refined_state(state: str, allocation_states: Iterable[str], is_unmanaged: bool) -> str:
    """Return the state in the REST API: ACTIVE is refined by the states of the allocations.

    Args:
        state: stored state of a trial or experiment.
        allocation_states: states of its allocations that have not ended.
        is_unmanaged: whether its trials run outside of the master.
    """
    if state != ACTIVE:
        return named(state)
    of_allocations = set(allocation_states)
    if RUNNING in of_allocations or is_unmanaged:
        return named(RUNNING)
    return named(STARTING) if of_allocations else named(QUEUED)


class Ending(str, enum.Enum):
    """How the last process of an allocation ended."""

    EXITED = "exited"
    LOST = "lost"
    NOT_LAUNCHED = "not launched"


@dataclass(frozen=True)
class Exit:
    """The end of one allocation.

    Attributes:
        ending: how the process ended.
        code: exit code of the process, 128 + N after signal N; None if unknown.
        is_killed: the master killed it.
        is_acknowledged: the process reported that it stops on request and can resume later.
        detail: why the process was not launched, was lost, or failed.
    """

    ending: Ending
    code: int | None = None
    is_killed: bool = False
    is_acknowledged: bool = False
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the end counts against the task: not if it was killed or acknowledged."""
        if self.is_killed or self.is_acknowledged:
            return False
        return self.ending is not Ending.EXITED or self.code != 0

    @property
    def has_failed(self) -> bool:
        """Whether the process ended with an error of its own, whatever it was asked before."""
        return (
            self.ending is Ending.EXITED and self.code not in (None, 0, *_TERMINATED) and not self.is_killed
        )

    @property
    def is_interrupted(self) -> bool:
        """Whether the machine ended the task, and not the task itself or the master."""
        if self.is_killed or self.is_acknowledged:
            return False
        return self.ending is Ending.LOST or (self.ending is Ending.EXITED and self.code in _TERMINATED)


@dataclass(frozen=True)
class ExitedRun:
    """The facts about a trial that decide what the end of its run means.

    Attributes:
        state: the trial's state.
        is_invalid_hp: the script refused its hyperparameters.
        is_retry_cancelled: a log policy made the next failure final.
        is_out_of_work: it reached all lengths that the search gave it, and gets no further length.
        is_waiting: it stopped at the length that the search gave it, and may get a longer one.
        restarts: restarts counted so far.
        max_restarts: the limit in the config.
        lost_runs: consecutive earlier runs that the machine ended; see `Exit.is_interrupted`.
        lacks_validation: the search compares trials, and this trial never reported its metric.
    """

    state: str
    is_invalid_hp: bool = False
    is_retry_cancelled: bool = False
    is_out_of_work: bool = False
    is_waiting: bool = False
    restarts: int = 0
    max_restarts: int = 5
    lost_runs: int = 0
    lacks_validation: bool = False


class Verdict(str, enum.Enum):
    """What the end of a run means for the trial."""

    COMPLETE = "complete"
    COMPLETE_INVALID_HP = "complete, invalid hyperparameters"
    CANCEL = "cancel"
    FAIL = "fail"
    RESTART = "run again, a restart is counted"
    RELAUNCH = "run again, no restart is counted"


def judge_exit(run: ExitedRun, exit_: Exit) -> Verdict:
    """Return what the end of a run means; the first rule that applies decides.

    RESTART and RELAUNCH do not change the trial's state: it runs again when it is active and has work.
    """
    if run.state in _STOPPING:
        return _judge_stopped(run.state, exit_)
    if run.is_invalid_hp:
        return Verdict.COMPLETE_INVALID_HP
    if exit_.is_failure or (run.is_out_of_work and exit_.has_failed):
        # A script may fail after it has trained all that it was asked for.
        return _judge_failure(run, exit_)
    if exit_.is_killed or exit_.is_acknowledged:
        return Verdict.COMPLETE if run.is_out_of_work else Verdict.RELAUNCH
    if run.is_waiting:
        # Some clients do not acknowledge that they stopped because they have no work.
        return Verdict.RELAUNCH
    return Verdict.FAIL if run.lacks_validation else Verdict.COMPLETE


def _judge_stopped(state: str, exit_: Exit) -> Verdict:
    if state == STOPPING_ERROR:
        return Verdict.FAIL
    if state == STOPPING_KILLED:
        return Verdict.CANCEL
    # A run that the machine ended says nothing about the trial, of which nothing is wanted any more.
    if exit_.is_failure and not exit_.is_interrupted:
        return Verdict.FAIL
    return Verdict.COMPLETE if state == STOPPING_COMPLETED else Verdict.CANCEL


def _judge_failure(run: ExitedRun, exit_: Exit) -> Verdict:
    if exit_.ending is Ending.NOT_LAUNCHED:
        return Verdict.FAIL
    if exit_.is_interrupted:
        return Verdict.FAIL if run.lost_runs >= _MOST_LOST_RUNS else Verdict.RELAUNCH
    if run.is_retry_cancelled or run.restarts >= run.max_restarts:
        return Verdict.FAIL
    return Verdict.RESTART
