"""Which values of two checkpoints count as the same."""

from __future__ import annotations

import copy
import random
from collections import deque

import numpy as np
import pytest

from det_keras.keras.checkpoint.comparison import Values, _Reference


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
    assert Values().are_same(value, copy.deepcopy(value))


def test_shared_parts_do_not_matter():
    # A pickle of one object names it only once.
    part = "a text that " + str(len(VALUES))
    assert Values().are_same([part, part], [part, "a text that " + str(len(VALUES))])


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
    assert not Values().are_same(one, other)


def test_object_by_its_path_is_the_same_as_a_value():
    parts = {"a.items": {"": [1, _Reference("a.items[1]")]}, "a.items[1]": {"value": 2}}
    whole = [1, Thing(2)]
    for values in (Values(parts, {}), Values({}, parts)):
        pair = (_Reference("a.items"), whole)
        assert values.are_same(*(pair if values._before else reversed(pair)))
        assert values.inlined == set(parts)
    assert not Values(parts, {}).are_same(_Reference("a.items"), [1, Thing(3)])
    assert not Values({}, {}).are_same(_Reference("a.items"), whole)
    assert Values({}, {}).are_same(_Reference("a"), _Reference("a"))
