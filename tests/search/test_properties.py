"""What holds for every search, whatever its trials do and whenever they do it."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_keras.search import ExitedReason, Searcher
from det_keras.search.simulate import Outcome, SimulatedExit, SimulatedTrial, simulate
from search.searches import searcher

LENGTHS = {"stopping": "time_metric: epochs, max_time: 27", "promotion": "max_length: {epochs: 27}"}
STOP_ONCE = "max_length: {epochs: 27}, stop_once: true"


@st.composite
def searches(draw) -> str:
    """Return the fields of any search."""
    trials = draw(st.integers(1, 30))
    concurrent = draw(st.integers(0, 8))
    common = f"max_trials: {trials}, max_concurrent_trials: {concurrent}"
    length = draw(st.sampled_from([*LENGTHS.values(), STOP_ONCE]))
    divisor = f"divisor: {draw(st.sampled_from([2, 2.5, 3, 4]))}"
    return draw(
        st.sampled_from(
            [
                f"name: random, {common}",
                f"name: random, {common}, max_length: {{epochs: 27}}",
                f"name: async_halving, {common}, {length}, {divisor}, num_rungs: {draw(st.integers(1, 5))}",
                f"name: adaptive_asha, {common}, {length}, {divisor}, "
                f"mode: {draw(st.sampled_from(['aggressive', 'standard', 'conservative']))}",
            ]
        )
    )


def eventful(chance: int):
    """Return an objective of which some trials fail, are cancelled, refuse their values or diverge."""

    def metric(trial: SimulatedTrial, length: int) -> float:
        one = random.Random(f"{chance} {trial.seed} {length}")
        event = one.random()
        if event < 0.12:
            raise SimulatedExit(one.choice(list(ExitedReason)))
        if event < 0.16:
            return one.choice([math.nan, math.inf, -math.inf])
        return round(one.random(), 1)

    return metric


def pace(trial: SimulatedTrial) -> float:
    return random.Random(trial.seed).uniform(0.2, 3.0)


def play(fields: str, slots: int, chance: int, *, restored: bool = False) -> Outcome:
    def again(one: Searcher) -> Searcher:
        fresh = searcher(fields)
        fresh.restore(json.loads(json.dumps(one.snapshot())))
        return fresh

    on_event = again if restored else None
    return simulate(
        searcher(fields),
        eventful(chance),
        slots=slots,
        full_length=27,
        report_every=1,
        pace=pace,
        on_event=on_event,
    )


anything = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@anything
@given(searches(), st.integers(1, 6), st.integers(0, 10**6))
def test_search_restored_before_every_event_is_the_undisturbed_one(fields, slots, chance):
    assert play(fields, slots, chance, restored=True) == play(fields, slots, chance)


@anything
@given(searches(), st.integers(1, 6), st.integers(0, 10**6))
def test_every_search_ends_with_every_trial_accounted_for(fields, slots, chance):
    one = searcher(fields)
    planned = one.method.planned_trials()
    outcome = simulate(one, eventful(chance), slots=slots, full_length=27, report_every=1, pace=pace)
    assert outcome.ending is not None
    if outcome.ending.reason:
        return
    sets = one.snapshot()["sets"]
    assert len(outcome.trials) == len(sets["requested"]) == len(sets["created"]) == len(sets["exited"])
    invalid = [trial for trial in outcome.trials if trial.reason is not None and trial.reason.is_invalid_hp]
    assert len(outcome.trials) - len(invalid) == planned


@anything
@given(searches(), st.integers(0, 10**6))
def test_no_more_train_at_once_than_the_search_allows(fields, chance):
    one = searcher(fields)
    most = len([action for action in searcher(fields).initial() if hasattr(action, "hparams")])
    outcome = simulate(one, eventful(chance), slots=1000, full_length=27, pace=pace)
    assert outcome.most_at_once <= most


@anything
@given(searches(), st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
def test_points_do_not_depend_on_the_number_of_slots(fields, slots, others, chance):
    def plain(trial: SimulatedTrial, length: int) -> float:
        return random.Random(f"{chance} {trial.seed} {length}").random()

    found = [
        [
            (trial.hparams, trial.seed)
            for trial in simulate(searcher(fields), plain, slots=count, full_length=27, pace=pace).trials
        ]
        for count in (slots, others)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", LENGTHS)
def test_trials_that_train_in_full_are_few(name):
    fields = f"name: adaptive_asha, max_trials: 200, mode: aggressive, divisor: 3, {LENGTHS[name]}"
    one = searcher(fields)
    outcome = simulate(one, lambda trial, _: random.Random(trial.seed).random(), slots=4, full_length=27)
    assert outcome.total_length < 0.45 * 27 * 200
