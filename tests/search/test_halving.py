"""Asynchronous halving, decision by decision and as whole searches, against the specification."""

from __future__ import annotations

import math

import pytest

from det_keras.search import Close, ExitedReason, Shutdown, Stop, ValidateAfter
from det_keras.search.simulate import SimulatedExit, simulate
from search.searches import alone, created, searcher

STOPPING = "time_metric: epochs, max_time: 64"
PROMOTION = "max_length: {epochs: 64}"
STYLES = {"stopping": STOPPING, "promotion": PROMOTION}
# In the order of arrival; with divisor 4.
ARRIVALS = (0.50, 0.60, 0.40, 0.40, 0.70, 0.30, 0.45, 0.20, 0.20, 0.90, 0.10, 0.35)


def two_rungs(style: str, trials: int = 100, concurrent: int = 12):
    return searcher(
        f"name: async_halving, num_rungs: 2, max_trials: {trials}, max_concurrent_trials: {concurrent}, {STYLES[style]}"
    )


def started(one):
    trials = created(one.initial())
    for trial in trials:
        one.trial_created(trial)
    return trials


def test_stopping_decides_on_arrival_as_the_specification_does():
    one = two_rungs("stopping")
    found = []
    for trial, value in zip(started(one), ARRIVALS, strict=True):
        actions = one.validation_reported(trial, value, {"epochs": 16})
        assert created(actions) == created(actions[1:])
        found.append("stop" if Stop(trial) in actions else "continue")
        assert len(created(actions)) == (found[-1] == "stop")
    assert found == [
        *["continue", "stop", "continue", "continue", "stop", "continue"],
        *["stop", "continue", "continue", "stop", "continue", "stop"],
    ]


def test_promotion_decides_on_arrival_as_the_specification_does():
    one = two_rungs("promotion")
    trials = started(one)
    found = []
    for trial, value in zip(trials, ARRIVALS, strict=True):
        actions = one.operation_completed(trial, 16, value, {})
        promoted = [action for action in actions if action == ValidateAfter(action.request_id, 64)]
        found.append(trials.index(promoted[0].request_id) + 1 if promoted else None)
        # Exactly one new piece of work for each report.
        assert len(promoted) + len(created(actions)) == 1
    assert found == [None, None, None, 3, None, 6, None, 8, 9, None, 11, None]


def test_validations_between_rungs_are_ignored():
    one = two_rungs("stopping")
    trial = started(one)[0]
    assert [one.validation_reported(trial, 0.5, {"epochs": epoch}) for epoch in (1, 15, 16, 17, 63)] == [
        []
    ] * 5
    assert one.validation_reported(trial, 0.5, {"epochs": 64.9})[0] == Stop(trial)
    assert one.validation_reported(trial, 0.5, {"epochs": 65}) == []


def test_one_validation_may_pass_several_rungs():
    one = two_rungs("stopping")
    first, second = started(one)[:2]
    assert one.validation_reported(first, 0.5, {"epochs": 64})[0] == Stop(first)
    # The first rung holds 0.5 already, so that worse ones stop there.
    assert one.validation_reported(second, 0.6, {"epochs": 16})[0] == Stop(second)


@pytest.mark.parametrize(
    ("style", "mode", "best_first", "best_last", "equal"),
    [
        ("promotion", "aggressive", {4: 12, 16: 3, 64: 1}, {4: 3, 16: 3, 64: 10}, {4: 12, 16: 3, 64: 1}),
        ("promotion", "standard", {4: 9, 16: 6, 64: 1}, {4: 3, 16: 6, 64: 7}, {4: 9, 16: 6, 64: 1}),
        ("promotion", "conservative", {4: 9, 16: 6, 64: 1}, {4: 3, 16: 6, 64: 7}, {4: 9, 16: 6, 64: 1}),
        ("stopping", "aggressive", {4: 15, 64: 1}, {64: 16}, {64: 16}),
        ("stopping", "standard", {4: 11, 16: 3, 64: 2}, {64: 16}, {64: 16}),
        ("stopping", "conservative", {4: 11, 16: 2, 64: 3}, {64: 16}, {64: 16}),
    ],
)
def test_whole_searches_of_the_specification(style, mode, best_first, best_last, equal):
    fields = f"name: adaptive_asha, max_trials: 16, mode: {mode}, {STYLES[style]}"
    assert alone(searcher(fields), lambda trial, _: trial.number / 100).endings() == best_first
    assert alone(searcher(fields), lambda trial, _: -trial.number / 100).endings() == best_last
    assert alone(searcher(fields), lambda *_: 0.5).endings() == equal


HALVING = "name: async_halving, num_rungs: 3, divisor: 3, max_trials: 12"


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ("max_length: {batches: 9000}", {1000: 8, 3000: 3, 9000: 1}),
        ("time_metric: batches, max_time: 9000", {1000: 11, 9000: 1}),
    ],
    ids=["promotion", "stopping"],
)
def test_single_bracket_of_the_specification(length, expected):
    outcome = simulate(
        searcher(f"{HALVING}, {length}"),
        lambda trial, _: trial.number / 100,
        slots=1,
        full_length=9000,
        report_every=500,
    )
    assert outcome.endings() == expected


def test_failed_trial_takes_the_last_place_of_its_rung():
    def metric(trial, _):
        if trial.number == 3:
            raise SimulatedExit(ExitedReason.ERRORED)
        return {1: 0.10, 2: 0.11}.get(trial.number, (trial.number - 3) / 100)

    outcome = alone(searcher(f"{HALVING}, max_length: {{batches: 9000}}"), metric)
    assert [trial.length for trial in outcome.trials] == [
        *[3000, 1000, 1000, 9000, 3000, 3000, 3000],
        *[1000, 1000, 1000, 1000, 1000],
    ]
    assert outcome.ending == Shutdown()


def test_failure_makes_room_at_its_rung():
    one = two_rungs("stopping")
    trials = started(one)
    one.validation_reported(trials[0], 0.1, {"epochs": 16})
    for trial in trials[1:7]:
        one.trial_exited_early(trial, ExitedReason.ERRORED)
    # Eight results, of which two are kept: the failures count.
    assert one.validation_reported(trials[7], 0.2, {"epochs": 16}) == []
    # A second report of the same end counts once.
    assert one.trial_exited_early(trials[1], ExitedReason.USER_CANCELED) == []


def test_promoted_trial_that_is_gone_counts_as_the_worst_of_the_next_rung():
    one = two_rungs("promotion", trials=8, concurrent=4)
    first, second, third, fourth = started(one)
    one.operation_completed(first, 16, 0.1, {})
    one.trial_exited_early(first, ExitedReason.ERRORED)
    one.trial_exited(first)
    for trial, value in ((second, 0.2), (third, 0.3)):
        one.operation_completed(trial, 16, value, {})
    # Now the first is due; it cannot go on, so that a new trial is the next piece of work.
    actions = one.operation_completed(fourth, 16, 0.4, {})
    assert [type(action).__name__ for action in actions] == ["Create", "ValidateAfter"]
    assert one.method.snapshot()["brackets"][0]["rungs"][1][1] == [first]


def test_trial_that_is_cancelled_while_it_waits_loses_no_work():
    one = two_rungs("promotion")
    first = started(one)[0]
    one.operation_completed(first, 16, 0.1, {})
    assert one.trial_exited_early(first, ExitedReason.USER_CANCELED) == []
    assert one.trial_exited(first) == []


@pytest.mark.parametrize("style", STYLES)
def test_invalid_hyperparameters_leave_no_trace_and_are_replaced(style):
    one = two_rungs(style, trials=4, concurrent=4)
    first, second, *_ = started(one)
    if style == "stopping":
        one.validation_reported(first, 0.1, {"epochs": 16})
    else:
        one.operation_completed(first, 16, 0.1, {})
    actions = one.trial_exited_early(first, ExitedReason.INVALID_HP)
    assert actions[0] == (Stop(first) if style == "stopping" else Close(first))
    assert len(created(actions)) == 1
    (bracket,) = one.method.snapshot()["brackets"]
    assert [ids for _, ids in bracket["rungs"]] == [[], []]
    if style == "stopping":
        # Were the 0.1 still there, this one would be stopped.
        assert one.validation_reported(second, 0.9, {"epochs": 16}) == []


@pytest.mark.parametrize("style", STYLES)
def test_search_whose_every_point_is_refused_ends_with_an_explanation(style):
    def refuse(*_):
        raise SimulatedExit(ExitedReason.INVALID_HP)

    outcome = simulate(two_rungs(style, trials=3), refuse)
    assert outcome.ending.failure
    assert "hyperparameters" in outcome.ending.reason
    assert len(outcome.trials) == 33


@pytest.mark.parametrize("style", STYLES)
def test_failures_count_and_the_search_goes_on(style):
    def metric(trial, _):
        if trial.number % 2:
            raise SimulatedExit(ExitedReason.ERRORED)
        return trial.number / 100

    outcome = simulate(two_rungs(style, trials=20), metric)
    assert len(outcome.trials) == 20
    assert outcome.ending == Shutdown()


@pytest.mark.parametrize("style", STYLES)
def test_search_whose_every_trial_fails_is_a_failure(style):
    def fail(*_):
        raise SimulatedExit(ExitedReason.ERRORED)

    outcome = simulate(two_rungs(style, trials=20), fail)
    assert len(outcome.trials) == 20
    assert outcome.ending == Shutdown(failure=True)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("larger", [False, True], ids=["smaller", "larger"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_metrics_that_are_no_numbers_rank_last(style, larger, bad):
    direction = "smaller_is_better: false" if larger else "smaller_is_better: true"
    one = searcher(
        f"name: async_halving, num_rungs: 2, max_trials: 100, max_concurrent_trials: 4, {direction}, {STYLES[style]}"
    )
    trials = started(one)
    values = [bad, 0.5, bad, 0.7]
    for trial, value in zip(trials, values, strict=True):
        if style == "stopping":
            one.validation_reported(trial, value, {"epochs": 16})
        else:
            one.operation_completed(trial, 16, value, {})
    (bracket,) = one.method.snapshot()["brackets"]
    ranked = bracket["rungs"][0][1]
    assert ranked[:2] == ([trials[3], trials[1]] if larger else [trials[1], trials[3]])
    assert set(ranked[2:]) == {trials[0], trials[2]}


def test_trial_that_ends_by_itself_below_the_top_makes_room_for_another():
    outcome = simulate(two_rungs("stopping", trials=10, concurrent=2), lambda *_: 0.5, full_length=10)
    assert outcome.endings() == {10: 10}
    assert outcome.ending == Shutdown()


def test_lengths_era_stopping_gives_lengths_and_closes():
    fields = "max_length: {epochs: 64}, stop_once: true"
    one = searcher(f"name: async_halving, num_rungs: 2, max_trials: 100, max_concurrent_trials: 2, {fields}")
    first, second = started(one)
    assert one.operation_completed(first, 16, 0.5, {}) == [ValidateAfter(first, 64)]
    close, *following = one.operation_completed(second, 16, 0.6, {})
    assert close == Close(second)
    assert [type(action).__name__ for action in following] == ["Create", "ValidateAfter"]
    assert one.operation_completed(first, 64, 0.4, {})[0] == Close(first)
    outcome = alone(
        searcher(f"name: adaptive_asha, max_trials: 16, mode: standard, {fields}"), lambda *_: 0.5
    )
    assert outcome.endings() == {64: 16}


def test_progress_of_a_bracket_follows_the_specification():
    one = searcher(
        "name: async_halving, num_rungs: 1, max_trials: 16, max_concurrent_trials: 16, time_metric: epochs, max_time: 1"
    )
    trials = started(one)
    for trial in trials[:8]:
        one.validation_reported(trial, 0.5, {"epochs": 1})
    assert one.progress() == pytest.approx(8 / 16 / 1.2)
    for trial in trials[8:]:
        one.validation_reported(trial, 0.5, {"epochs": 1})
    for count, trial in enumerate(trials, start=1):
        one.trial_exited(trial)
        assert one.progress() == pytest.approx(max(16 / 16 / 1.2, count / 16))


def test_brackets_share_one_stream_in_the_order_in_which_they_start():
    random = searcher("name: random, max_trials: 12, max_concurrent_trials: 0").initial()
    asha = searcher(f"name: adaptive_asha, max_trials: 16, {STOPPING}").initial()
    assert asha == random[:12]
