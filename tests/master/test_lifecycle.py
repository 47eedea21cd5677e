"""What the end of a process means, row by row, and which states follow which."""

from __future__ import annotations

import pytest

from det_keras.master.lifecycle import (
    Ending,
    Exit,
    ExitedRun,
    Verdict,
    experiment_may_become,
    judge_exit,
    trial_may_become,
)
from det_keras.protocol import states

CLEAN = Exit(Ending.EXITED, 0)
FAILED = Exit(Ending.EXITED, 1)
SIGNALLED = Exit(Ending.EXITED, 137)
ACKNOWLEDGED = Exit(Ending.EXITED, 0, is_acknowledged=True)
ACKNOWLEDGED_FAILED = Exit(Ending.EXITED, 1, is_acknowledged=True)
TERMINATED = Exit(Ending.EXITED, 143)
KILLED = Exit(Ending.EXITED, 137, is_killed=True)
LOST = Exit(Ending.LOST)
LOST_KILLED = Exit(Ending.LOST, is_killed=True)
NOT_LAUNCHED = Exit(Ending.NOT_LAUNCHED)


def run(state: str = states.ACTIVE, **facts) -> ExitedRun:
    return ExitedRun(state=state, **facts)


@pytest.mark.parametrize(
    ("before", "exit_", "verdict"),
    [
        (run(), CLEAN, Verdict.COMPLETE),
        (run(lacks_validation=True), CLEAN, Verdict.FAIL),
        (run(is_waiting=True), CLEAN, Verdict.RELAUNCH),
        (run(), FAILED, Verdict.RESTART),
        (run(), SIGNALLED, Verdict.RESTART),
        (run(restarts=5), FAILED, Verdict.FAIL),
        (run(restarts=4), FAILED, Verdict.RESTART),
        (run(max_restarts=0), FAILED, Verdict.FAIL),
        (run(is_retry_cancelled=True), FAILED, Verdict.FAIL),
        (run(is_retry_cancelled=True), CLEAN, Verdict.COMPLETE),
        (run(), ACKNOWLEDGED, Verdict.RELAUNCH),
        (run(), ACKNOWLEDGED_FAILED, Verdict.RELAUNCH),
        (run(is_out_of_work=True), ACKNOWLEDGED, Verdict.COMPLETE),
        (run(is_out_of_work=True), ACKNOWLEDGED_FAILED, Verdict.RESTART),
        (run(is_out_of_work=True, max_restarts=0), ACKNOWLEDGED_FAILED, Verdict.FAIL),
        (run(), KILLED, Verdict.RELAUNCH),
        (run(max_restarts=0), LOST, Verdict.RELAUNCH),
        (run(lost_runs=20), LOST, Verdict.FAIL),
        (run(max_restarts=0), TERMINATED, Verdict.RELAUNCH),
        (run(is_retry_cancelled=True), TERMINATED, Verdict.RELAUNCH),
        (run(max_restarts=0), Exit(Ending.EXITED, 130), Verdict.RELAUNCH),
        (run(max_restarts=0), Exit(Ending.EXITED, 129), Verdict.RELAUNCH),
        (run(lost_runs=20), TERMINATED, Verdict.FAIL),
        (run(states.STOPPING_CANCELED), TERMINATED, Verdict.CANCEL),
        (run(states.STOPPING_COMPLETED), TERMINATED, Verdict.COMPLETE),
        (run(), NOT_LAUNCHED, Verdict.FAIL),
        (run(is_invalid_hp=True), CLEAN, Verdict.COMPLETE_INVALID_HP),
        (run(is_invalid_hp=True, max_restarts=0), FAILED, Verdict.COMPLETE_INVALID_HP),
        (run(is_invalid_hp=True), KILLED, Verdict.COMPLETE_INVALID_HP),
        (run(states.PAUSED), ACKNOWLEDGED, Verdict.RELAUNCH),
        (run(states.PAUSED), KILLED, Verdict.RELAUNCH),
        (run(states.PAUSED), CLEAN, Verdict.COMPLETE),
        (run(states.PAUSED), FAILED, Verdict.RESTART),
        (run(states.STOPPING_COMPLETED), CLEAN, Verdict.COMPLETE),
        (run(states.STOPPING_COMPLETED), ACKNOWLEDGED, Verdict.COMPLETE),
        (run(states.STOPPING_COMPLETED), KILLED, Verdict.COMPLETE),
        (run(states.STOPPING_COMPLETED), FAILED, Verdict.FAIL),
        (run(states.STOPPING_COMPLETED), LOST, Verdict.COMPLETE),
        (run(states.STOPPING_CANCELED), CLEAN, Verdict.CANCEL),
        (run(states.STOPPING_CANCELED), LOST, Verdict.CANCEL),
        (run(states.STOPPING_CANCELED), KILLED, Verdict.CANCEL),
        (run(states.STOPPING_CANCELED), FAILED, Verdict.FAIL),
        (run(states.STOPPING_KILLED), KILLED, Verdict.CANCEL),
        (run(states.STOPPING_KILLED), LOST_KILLED, Verdict.CANCEL),
        (run(states.STOPPING_KILLED), FAILED, Verdict.CANCEL),
        (run(states.STOPPING_ERROR), KILLED, Verdict.FAIL),
        (run(states.STOPPING_ERROR), CLEAN, Verdict.FAIL),
    ],
)
def test_end_of_a_run_is_judged(before, exit_, verdict):
    assert judge_exit(before, exit_) is verdict


@pytest.mark.parametrize(
    ("state", "wanted", "may"),
    [
        ("ACTIVE", "STOPPING_COMPLETED", True),
        ("ACTIVE", "COMPLETED", True),
        ("ACTIVE", "ERROR", True),
        ("PAUSED", "ACTIVE", True),
        ("STOPPING_COMPLETED", "STOPPING_KILLED", True),
        ("STOPPING_KILLED", "STOPPING_CANCELED", False),
        ("STOPPING_CANCELED", "STOPPING_COMPLETED", False),
        ("STOPPING_ERROR", "STOPPING_KILLED", False),
        ("STOPPING_CANCELED", "ACTIVE", False),
        ("STOPPING_KILLED", "CANCELED", True),
        ("STOPPING_KILLED", "COMPLETED", False),
        ("COMPLETED", "ACTIVE", False),
        ("CANCELED", "STOPPING_KILLED", False),
    ],
)
def test_trial_only_moves_on(state, wanted, may):
    assert trial_may_become(state, wanted) is may


@pytest.mark.parametrize(
    ("state", "wanted", "may"),
    [
        ("ACTIVE", "PAUSED", True),
        ("ACTIVE", "DELETING", False),
        ("PAUSED", "ACTIVE", True),
        ("PAUSED", "STOPPING_KILLED", True),
        ("STOPPING_CANCELED", "STOPPING_COMPLETED", False),
        ("STOPPING_CANCELED", "PAUSED", False),
        ("STOPPING_ERROR", "STOPPING_KILLED", False),
        ("COMPLETED", "ACTIVE", False),
        ("COMPLETED", "DELETING", True),
        ("DELETING", "DELETE_FAILED", True),
        ("DELETE_FAILED", "DELETING", True),
    ],
)
def test_experiment_follows_its_table(state, wanted, may):
    assert experiment_may_become(state, wanted) is may
