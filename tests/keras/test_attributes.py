"""The plain attributes of callbacks and datasets: what changes is kept, and comes back exactly."""

from __future__ import annotations

import logging
import pickle
import random
from collections import Counter, deque

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_keras.keras.checkpoint.attributes import PlainState


class Thing:
    """An object with attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=6,
)


@given(before=VALUES, after=VALUES)
def test_whatever_is_plain_comes_back(before, after):
    thing = Thing(value=before)
    state = PlainState(thing)
    thing.value = after
    content = state.dump()
    later = Thing(value=pickle.loads(pickle.dumps(before)))
    PlainState(later).load(content)
    assert repr(later.value) == repr(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.zeros(3), np.array([1.0, np.nan, 3.0])),
        (np.arange(400_000), np.arange(400_000)[::-1].copy()),
        (deque([1], maxlen=3), deque([1, 2], maxlen=3)),
        (Counter("a"), Counter("abb")),
        ({1}, {1, 2}),
        (np.float32(1), np.float32(2)),
    ],
    ids=["array", "large array", "deque", "counter", "set", "numpy scalar"],
)
def test_containers_and_arrays_come_back(before, after):
    thing = Thing(value=before)
    state = PlainState(thing)
    thing.value = after
    later = Thing(value=before)
    PlainState(later).load(state.dump())
    np.testing.assert_equal(later.value, after)
    assert type(later.value) is type(after)


@pytest.mark.parametrize(
    "make",
    [lambda: np.random.default_rng(1), lambda: random.Random(1)],
    ids=["generator", "random"],
)
def test_streams_continue_and_stay_shared(make):
    thing = Thing(stream=make())
    state = PlainState(thing)
    thing.stream.random()
    content, following = state.dump(), thing.stream.random()
    stream = make()
    later = Thing(stream=stream)
    PlainState(later).load(content)
    assert later.stream is stream, "another object may draw from it too"
    assert stream.random() == following


def test_what_does_not_change_is_not_kept():
    thing = Thing(data=np.zeros(1000), name="a", count=0)
    state = PlainState(thing)
    thing.count = 1
    assert list(pickle.loads(state.dump())) == ["count"]


def test_attribute_that_a_hook_changed_becomes_what_it_was():
    """At the checkpoint it was as after `on_train_begin`; `on_epoch_begin` of the resumed run changed it."""
    thing = Thing(count=0)
    content = PlainState(thing).dump()
    later = Thing(count=0)
    state = PlainState(later)
    later.count = 5
    state.load(content)
    assert later.count == 0


def test_argument_that_the_script_changed_keeps_its_new_value():
    thing = Thing(patience=3)
    state = PlainState(thing)
    thing.patience = 2
    later = Thing(patience=10)
    PlainState(later).load(state.dump())
    assert later.patience == 10


def test_what_is_not_plain_is_left_alone():
    thing = Thing(model=keras.Sequential(), function=len, items=[object()])
    state = PlainState(thing)
    thing.model, thing.items = keras.Sequential(), [object()]
    assert pickle.loads(state.dump()) == {}


def test_changing_attribute_that_is_too_large_is_named(caplog):
    thing = Thing(rows=np.zeros((65 << 20) // 8))
    state = PlainState(thing)
    thing.rows = thing.rows + 1
    with caplog.at_level(logging.WARNING):
        assert pickle.loads(state.dump()) == {}
        state.dump()
    assert [record.getMessage().split(" changes")[0] for record in caplog.records] == ["`Thing.rows`"]
    assert "get_state" in caplog.text
