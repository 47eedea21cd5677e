"""Which values of two checkpoints count as the same."""

from __future__ import annotations

import copy
import random
from collections import deque

import numpy as np
import pytest

from det_keras.keras.checkpoint.comparison import _is_same


class Thing:
    def __init__(self, value):
        self.value = value


VALUES = [
    1.5,
    float("nan"),
    "text",
    [1, {"a": (2, 3)}],
    deque([1, 2], maxlen=3),
    {"a", "b"},
    np.array([1.0, np.nan], np.float32),
    np.random.default_rng(3),
    random.Random(3),
    Thing(Thing([np.zeros(2)])),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_copies_are_the_same(value):
    assert _is_same(value, copy.deepcopy(value))


def test_shared_parts_do_not_matter():
    # A pickle of one object names it only once.
    part = "a text that " + str(len(VALUES))
    assert _is_same([part, part], [part, "a text that " + str(len(VALUES))])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
        (np.array([0.0]), np.array([-0.0])),
        (random.Random(3), random.Random(4)),
        (Thing([1]), Thing([2])),
    ],
)
def test_other_values_are_not(one, other):
    assert not _is_same(one, other)
