"""The arithmetic of brackets, against the tables of the specification."""

from __future__ import annotations

import pytest

from det_keras.config import load_experiment_config
from det_keras.errors import ConfigError
from det_keras.search.methods import from_config
from det_keras.search.rungs import BracketPlan, adaptive_brackets, plan_bracket, plan_brackets, rung_lengths

MODES = ("aggressive", "standard", "conservative")


@pytest.mark.parametrize(
    ("rungs", "divisor", "length", "expected"),
    [
        (3, 4, 64, (4, 16, 64)),
        (2, 4, 64, (16, 64)),
        (1, 4, 64, (64,)),
        (5, 4, 1000, (3, 15, 62, 250, 1000)),
        (4, 4, 100, (1, 6, 25, 100)),
        (3, 3, 12, (1, 4, 12)),
        (4, 2, 10, (1, 2, 5, 10)),
        (3, 4, 5, (1, 1, 5)),
        (3, 2.5, 100, (16, 40, 100)),
    ],
)
def test_rung_lengths(rungs, divisor, length, expected):
    assert rung_lengths(rungs, divisor, length) == expected


@pytest.mark.parametrize(
    ("useful", "expected"),
    [
        (1, ([1], [1], [1])),
        (2, ([2], [2, 1], [2, 1])),
        (3, ([3], [3, 2], [3, 2, 1])),
        (4, ([4], [4, 3, 2], [4, 3, 2, 1])),
        (5, ([5], [5, 4, 3], [5, 4, 3, 2, 1])),
    ],
)
def test_brackets_of_each_mode(useful, expected):
    found = tuple(adaptive_brackets(mode, useful, 4, 10**6, 10**6) for mode in MODES)
    assert found == expected


@pytest.mark.parametrize(
    ("divisor", "length", "expected"), [(10, 1000, 3), (3, 243, 5), (4, 64, 4), (2, 8, 4)]
)
def test_useful_rungs_are_counted_with_the_plain_quotient(divisor, length, expected):
    assert adaptive_brackets("aggressive", 9, divisor, length, 10**6) == [expected]


@pytest.mark.parametrize(
    ("trials", "divisor", "brackets", "expected"),
    [
        (20, 3, [3, 2, 1], [12, 5, 3]),
        (50, 3, [4, 3], [35, 15]),
        (50, 4, [3, 2], [37, 13]),
        (100, 4, [4, 3, 2], [70, 22, 8]),
        (100, 4, [2, 4, 3], [70, 22, 8]),
        (1, 4, [3, 2], [1, 1]),
    ],
)
def test_trials_are_split_over_brackets(trials, divisor, brackets, expected):
    assert [plan.trials for plan in plan_brackets(brackets, divisor, 64, trials, 16)] == expected


@pytest.mark.parametrize(
    ("brackets", "divisor", "trials", "concurrency", "expected"),
    [
        ([3, 2, 1], 3, 20, 11, [4, 4, 3]),
        ([3, 2, 1], 3, 13, 0, [3, 3, 3]),
        ([3, 2], 4, 50, 0, [13, 13]),
        ([3, 2, 1], 3, 20, 1, [1, 1, 1]),
        ([3, 2], 4, 16, 16, [8, 8]),
    ],
)
def test_concurrency_is_split_over_brackets(brackets, divisor, trials, concurrency, expected):
    plans = plan_brackets(brackets, divisor, 64, trials, concurrency)
    assert [plan.concurrency for plan in plans] == expected


# (max_trials, length, divisor, max_concurrent_trials) -> of each mode, (rungs, trials, concurrency)
WORKED = {
    (16, 64, 4, 16): ([(3, 16, 16)], [(3, 12, 8), (2, 4, 8)], [(3, 12, 6), (2, 3, 5), (1, 1, 5)]),
    (10, 100, 4, 16): ([(2, 10, 16)], [(2, 7, 8), (1, 3, 8)], [(2, 7, 8), (1, 3, 8)]),
    (64, 16, 4, 16): ([(3, 64, 16)], [(3, 47, 8), (2, 17, 8)], [(3, 42, 6), (2, 15, 5), (1, 7, 5)]),
    (100, 256, 4, 16): (
        [(4, 100, 16)],
        [(4, 70, 6), (3, 22, 5), (2, 8, 5)],
        [(4, 67, 4), (3, 21, 4), (2, 8, 4), (1, 4, 4)],
    ),
    (500, 256, 4, 16): (
        [(5, 500, 16)],
        [(5, 354, 6), (4, 110, 5), (3, 36, 5)],
        [(5, 341, 4), (4, 105, 3), (3, 35, 3), (2, 13, 3), (1, 6, 3)],
    ),
    (1000, 1000, 4, 16): (
        [(5, 1000, 16)],
        [(5, 707, 6), (4, 220, 5), (3, 73, 5)],
        [(5, 680, 4), (4, 211, 3), (3, 70, 3), (2, 26, 3), (1, 13, 3)],
    ),
    (3, 64, 4, 16): ([(1, 3, 16)], [(1, 3, 16)], [(1, 3, 16)]),
    (5, 3, 4, 16): ([(1, 5, 16)], [(1, 5, 16)], [(1, 5, 16)]),
    (10, 100, 4, 2): ([(2, 10, 2)], [(2, 7, 1), (1, 3, 1)], [(2, 7, 1), (1, 3, 1)]),
    (10, 1000, 3, 5): ([(3, 10, 5)], [(3, 7, 3), (2, 3, 2)], [(3, 7, 2), (2, 2, 2), (1, 1, 1)]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", WORKED, ids=str)
def test_plans_of_the_specification(sizes, mode):
    trials, length, divisor, concurrency = sizes
    brackets = adaptive_brackets(mode, 5, divisor, length, trials)
    plans = plan_brackets(brackets, divisor, length, trials, concurrency)
    found = [(len(plan.lengths), plan.trials, plan.concurrency) for plan in plans]
    assert found == WORKED[sizes][MODES.index(mode)]


@pytest.mark.parametrize(
    ("trials", "length", "divisor", "concurrency", "mode", "expected"),
    [
        (16, 64, 4, 16, "aggressive", {4: 12, 16: 3, 64: 1}),
        (16, 64, 4, 16, "standard", {4: 9, 16: 5, 64: 2}),
        (16, 64, 4, 16, "conservative", {4: 9, 16: 4, 64: 3}),
        (100, 256, 4, 16, "standard", {4: 53, 16: 30, 64: 13, 256: 4}),
        (500, 256, 4, 16, "standard", {1: 266, 4: 149, 16: 65, 64: 16, 256: 4}),
        (1000, 1000, 4, 16, "aggressive", {3: 750, 15: 188, 62: 47, 250: 12, 1000: 3}),
        (10, 900, 3, 5, "standard", {100: 5, 300: 3, 900: 2}),
    ],
)
def test_previews_of_the_specification(trials, length, divisor, concurrency, mode, expected):
    fields = (
        f"max_trials: {trials}, max_time: {length}, divisor: {divisor}, max_concurrent_trials: {concurrency}"
    )
    text = (
        "entrypoint: a\nsearcher: {name: adaptive_asha, metric: m, time_metric: epochs, "
        f"{fields}, mode: {mode}}}\n"
    )
    method = from_config(load_experiment_config(text).config).method
    assert method.planned_endings() == expected
    assert method.planned_trials() == trials


@pytest.mark.parametrize(
    ("rungs", "trials", "concurrency", "expected"),
    [(3, 16, 4, 4), (3, 2, 4, 2), (3, 100, 0, 16), (3, 10, 0, 10), (1, 10, 0, 1)],
)
def test_trials_that_start_at_once(rungs, trials, concurrency, expected):
    assert plan_bracket(rungs, 4, 64, trials, concurrency).first_trials == expected


def test_equal_lengths_of_rungs_are_one_ending():
    assert BracketPlan((1, 1, 5), 16, 16, 4.0).endings() == {1: 15, 5: 1}


def config_with(fields: str):
    text = f"entrypoint: a\nsearcher: {{metric: m, time_metric: epochs, max_time: 64, max_trials: 4, {fields}}}\n"
    return load_experiment_config(text).config


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("name: async_halving, num_rungs: 101", "num_rungs"),
        ("name: adaptive_asha, bracket_rungs: [3, 101]", "bracket_rungs"),
        ("name: async_halving, num_rungs: 99, divisor: 1.0e+10", "divisor"),
    ],
)
def test_rungs_beyond_reason_are_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        from_config(config_with(fields))
