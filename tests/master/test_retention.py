"""Which checkpoints survive: the table of the specification, for both directions of the metric."""

from __future__ import annotations

import math

import pytest

from det_keras.master.checkpoints.retention import Candidate, Retention, kept

ROWS = [
    (1, 1, 100, None),
    (2, 1, 200, 0.9),
    (3, 1, 300, 0.5),
    (4, 1, 400, 0.7),
    (5, 2, 100, 0.6),
    (6, 2, 200, 0.5),
    (7, 2, 300, None),
    (8, 3, 100, 0.4),
    (9, 3, 200, 0.8),
]
CANDIDATES = [
    Candidate(str(number), trial, steps, metric, validated=float(number))
    for number, trial, steps, metric in ROWS
]


@pytest.mark.parametrize(
    ("policy", "survivors"),
    [
        ((0, 0, 0), ""),
        ((0, 1, 1), "346789"),
        ((1, 0, 0), "8"),
        ((2, 0, 0), "38"),
        ((3, 0, 0), "368"),
        ((0, 1, 0), "368"),
        ((0, 2, 0), "345689"),
        ((0, 0, 1), "479"),
        ((0, 0, 2), "346789"),
        ((1, 1, 1), "346789"),
        ((99, 0, 0), "2345689"),
    ],
)
@pytest.mark.parametrize("candidates", [CANDIDATES, CANDIDATES[::-1]], ids=["forward", "backward"])
def test_policy_keeps(policy, survivors, candidates):
    assert kept(candidates, Retention(*policy)) == set(survivors)


@pytest.mark.parametrize(("policy", "survivors"), [((0, 1, 1), "24579"), ((2, 0, 0), "29")])
def test_policy_keeps_where_larger_is_better(policy, survivors):
    assert kept(CANDIDATES, Retention(*policy), smaller_is_better=False) == set(survivors)


def test_nan_is_worse_than_every_number():
    candidates = [Candidate("a", 1, 1, math.nan), Candidate("b", 1, 2, 1e300)]
    assert kept(candidates, Retention(1, 0, 0)) == {"b"}
    assert kept(candidates, Retention(1, 0, 0), smaller_is_better=False) == {"b"}
