"""What a training can reach: what changes is kept, whoever made it, and comes back in place."""

from __future__ import annotations

import collections
import functools
import logging
import pickle
import random
from collections import Counter, deque

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from det_keras.keras.checkpoint.reached import ReachedState

Point = collections.namedtuple("Point", "x y")
STEPS_SEEN = 0


class Thing:
    """An object with attributes."""

    shared = 0

    def __init__(self, **attributes):
        vars(self).update(attributes)


class Slotted:
    """An object without a dict."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


def carried(make, change):
    """Return a root as a resumed process has it: made anew, and given the state of one that changed.

    Args:
        make: makes a root.
        change: changes it, as a training does.
    """
    root = make()
    state = ReachedState({"root": root})
    change(root)
    values = {item.path: np.array(item.variable.value) for item in state.variables()}
    content = state.dump()
    later = make()
    restored = ReachedState({"root": later})
    restored.load(content)
    restored.assign(values)
    return later


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=6,
)


@given(before=VALUES, after=VALUES)
def test_whatever_is_plain_comes_back(before, after):
    later = carried(
        lambda: Thing(value=pickle.loads(pickle.dumps(before))), lambda thing: vars(thing).update(value=after)
    )
    assert repr(later.value) == repr(after)


@given(before=st.lists(VALUES, max_size=3), after=st.lists(VALUES, max_size=3))
def test_items_are_changed_in_place(before, after):
    rows = []

    def make():
        nonlocal rows
        rows = pickle.loads(pickle.dumps(before))
        return Thing(rows=rows)

    def change(thing):
        thing.rows[:] = after

    later = carried(make, change)
    assert later.rows is rows
    assert repr(rows) == repr(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.zeros(3), np.array([1.0, np.nan, 3.0])),
        (np.arange(400_000), np.arange(400_000)[::-1].copy()),
        (deque([1], maxlen=3), deque([1, 2], maxlen=3)),
        (Counter("a"), Counter("abb")),
        ({1}, {1, 2}),
        (np.float32(1), np.float32(2)),
        (collections.defaultdict(list), collections.defaultdict(list, a=[1])),
        ([Point(1, 2)], [Point(1, 2), Point(3, 4)]),
        ([np.zeros(2)] * 1500, [np.ones(2)] * 1500),
        (bytearray(b"a"), bytearray(b"ab")),
        (tf.constant([1.0]), tf.constant([2.0])),
    ],
    ids=[
        "array", "large array", "deque", "counter", "set", "numpy scalar", "defaultdict", "namedtuples",
        "long list of arrays", "bytes", "tensor",
    ],
)  # fmt: skip
def test_containers_and_arrays_come_back(before, after):
    later = carried(
        lambda: Thing(value=pickle.loads(pickle.dumps(before))), lambda thing: vars(thing).update(value=after)
    )
    np.testing.assert_equal(later.value, after)
    assert type(later.value) is type(after)


@pytest.mark.parametrize(
    ("make", "change", "read"),
    [
        (lambda: Slotted(), lambda one: setattr(one, "count", 3), lambda one: one.count),
        (
            lambda: Thing(inner=Thing(inner=Thing(count=0))),
            lambda one: setattr(one.inner.inner, "count", 3),
            lambda one: one.inner.inner.count,
        ),
        (lambda: {"a": [1]}, lambda one: one["a"].append(2), lambda one: one["a"]),
        (lambda: np.zeros(3), lambda one: one.fill(3), lambda one: one.tolist()),
        (lambda: np.array([[1], {}], object), lambda one: one[0].append(2), lambda one: one[0]),
        (lambda: Thing(at=1, gone=2), lambda one: delattr(one, "gone"), lambda one: vars(one)),
    ],
    ids=["slots", "nested objects", "nested containers", "array", "array of objects", "deleted attribute"],
)
def test_objects_of_the_script_come_back(make, change, read):
    expected = make()
    change(expected)
    assert read(carried(make, change)) == read(expected)


def closure():
    """Return two functions that share a list and a number."""
    rows, count = [], 0

    def add(value):
        nonlocal count
        count += 1
        rows.append(value)

    def seen():
        return rows, count

    return add, seen


def with_default(value, rows=[]):  # noqa: B006 - what a default keeps is state
    """Return what was given so far."""
    rows.append(value)
    return rows


class Hooks:
    """An object whose bound methods are callbacks."""

    def __init__(self):
        self.rows = []

    def add(self, value):
        """Keep a value."""
        self.rows.append(value)


def test_closures_come_back_and_stay_shared():
    add, seen = carried(closure, lambda one: [one[0](value) for value in "ab"])
    assert seen() == (["a", "b"], 2)
    add("c")
    assert seen() == (["a", "b", "c"], 3)


def test_defaults_partials_and_bound_methods_are_followed():
    def make():
        return Thing(one=functools.partial(Hooks().add, 1), two=Hooks().add)

    later = carried(make, lambda one: (one.one(), one.two(2)))
    assert (later.one.func.__self__.rows, later.two.__self__.rows) == ([1], [2])


def test_default_that_a_function_fills_comes_back():
    state = ReachedState({"root": with_default})
    with_default(1)
    content = state.dump()
    with_default.__defaults__[0].clear()
    ReachedState({"root": with_default}).load(content)
    assert with_default.__defaults__[0] == [1]
    with_default.__defaults__[0].clear()


def count_step():
    """Count in a global name, in an attribute of a class, and in one of a function."""
    global STEPS_SEEN
    STEPS_SEEN += 1
    Thing.shared += 1
    count_step.calls = getattr(count_step, "calls", 0) + 1


def test_global_names_and_attributes_of_classes_and_functions_come_back():
    def values():
        return STEPS_SEEN, Thing.shared, getattr(count_step, "calls", 0)

    global STEPS_SEEN
    count_step.calls = 0
    state = ReachedState({"root": count_step})
    count_step()
    content = state.dump()
    STEPS_SEEN = Thing.shared = count_step.calls = 0
    ReachedState({"root": count_step}).load(content)
    assert values() == (1, 1, 1)
    STEPS_SEEN = Thing.shared = 0


def test_objects_that_trade_places_are_the_same_objects():
    def make():
        return Thing(old=[1], new=[2])

    def trade(one):
        one.old, one.new = one.new, one.old

    original = {}

    def make_and_note():
        one = make()
        original.update(vars(one))
        return one

    later = carried(make_and_note, trade)
    assert later.old is original["new"]
    assert later.new is original["old"]


@pytest.mark.parametrize(
    "make",
    [lambda: np.random.default_rng(1), lambda: random.Random(1), lambda: np.random.RandomState(1)],
    ids=["generator", "random", "random state"],
)
def test_streams_continue_and_stay_shared(make):
    thing = Thing(stream=make())
    state = ReachedState({"root": thing})
    thing.stream.random()
    content, following = state.dump(), thing.stream.random()
    stream = make()
    later = Thing(stream=stream)
    ReachedState({"root": later}).load(content)
    assert later.stream is stream, "another object may draw from it too"
    assert stream.random() == following


def test_objects_with_get_state_define_it():
    class Own:
        def __init__(self):
            self.count, self.other = 0, 0

        def get_state(self):
            return self.count

        def load_state(self, state):
            self.count = state

    later = carried(lambda: Thing(own=Own()), lambda one: vars(one.own).update(count=2, other=3))
    assert vars(later.own) == {"count": 2, "other": 0}


def test_what_does_not_change_is_not_kept():
    thing = Thing(data=np.zeros(100_000), name="a", count=0)
    state = ReachedState({"root": thing})
    thing.count = 1
    assert len(state.dump()) < 1000


def test_attribute_that_a_hook_changed_becomes_what_it_was():
    """At the checkpoint it was as after `on_train_begin`; `on_epoch_begin` of the resumed run changed it."""
    content = ReachedState({"root": Thing(count=0, rows=[1])}).dump()
    later = Thing(count=0, rows=[1])
    state = ReachedState({"root": later})
    state.begin()
    later.count = 5
    later.rows.append(2)
    state.load(content)
    assert vars(later) == {"count": 0, "rows": [1]}


def test_what_on_train_begin_made_is_made_anew_and_filled():
    def process():
        thing = Thing()
        state = ReachedState({"root": thing})
        thing.rows, thing.began = [], object()
        state.begin()
        return thing, state

    thing, state = process()
    thing.rows.append(1)
    later, restored = process()
    restored.load(state.dump())
    assert later.rows == [1]
    assert later.began is not None


def test_what_on_train_begin_made_comes_back_where_it_is_not_called():
    thing = Thing()
    state = ReachedState({"root": thing})
    thing.rows, thing.mean = [], keras.metrics.Mean()
    thing.again = thing.rows
    state.begin()
    thing.rows.append(1)
    thing.mean.update_state([2.0, 4.0])
    values = {item.path: np.array(item.variable.value) for item in state.variables()}
    content = state.dump()
    later = Thing()
    restored = ReachedState({"root": later})
    restored.load(content, has_begun=False)
    restored.assign(values)
    assert later.rows == [1]
    assert later.again is later.rows
    assert float(later.mean.result()) == 3.0


def test_argument_that_the_script_changed_keeps_its_new_value():
    thing = Thing(patience=3)
    state = ReachedState({"root": thing})
    thing.patience = 2
    later = Thing(patience=10)
    ReachedState({"root": later}).load(state.dump())
    assert later.patience == 10


def make_models():
    """Return a callback that holds a model, a metric and a variable of TensorFlow."""
    return Thing(
        model=keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
        mean=keras.metrics.Mean(),
        weight=[tf.Variable(0.0)],
        loose=tf.Variable([1.0], shape=[None]),
    )


def test_variables_behind_any_object_come_back():
    def change(one):
        one.model.set_weights([np.ones((2, 1)), np.ones(1)])
        one.mean.update_state([2.0])
        one.weight[0].assign(5.0)
        one.loose.assign([1.0, 2.0])

    later = carried(make_models, change)
    assert [array.tolist() for array in later.model.get_weights()] == [[[1.0], [1.0]], [1.0]]
    assert float(later.mean.result()) == 2.0
    assert float(later.weight[0]) == 5.0
    assert later.loose.numpy().tolist() == [1.0, 2.0]


def test_variables_that_do_not_change_are_not_kept():
    one = make_models()
    state = ReachedState({"root": one})
    one.weight[0].assign(2.0)
    assert [item.path for item in state.variables()] == ["root.weight[0]"]


def test_what_cannot_be_stored_is_named_once_with_its_path(tmp_path, caplog):
    with (tmp_path / "log").open("w") as handle:

        def make():
            return lambda: handle.write("a")

        state = ReachedState({"callbacks": (Thing(fn=make()),)})
        with caplog.at_level(logging.WARNING):
            state.dump()
            assert not caplog.records
            handle.write("abc")
            state.dump()
            state.dump()
    (record,) = caplog.records
    assert record.getMessage().startswith("`callbacks[0].fn.<closure>.handle` changes during training")
    assert "get_state" in record.getMessage()


def test_what_wraps_the_function_of_a_step_is_of_its_process():
    model, calls = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), {"count": 0}
    model.compile("sgd", "mse")
    inner = model.make_train_function()
    model.train_function = lambda iterator: calls.update(count=calls["count"] + 1) or inner(iterator)
    state = ReachedState({"model": model})
    before = state.dump()
    calls["count"] = 5
    assert state.dump() == before


def uses_modules():
    return functools, random


def test_module_that_a_later_function_uses_has_not_changed(caplog):
    root = Thing(hook=None)
    state = ReachedState({"root": root})
    root.hook = uses_modules
    state.extend()
    state.dump()
    assert not caplog.records


def test_writers_of_events_are_no_state(tmp_path, caplog):
    thing = Thing(writers={}, writer=None)
    state = ReachedState({"root": thing})
    thing.writers["train"] = thing.writer = tf.summary.create_file_writer(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        state.dump()
    assert not caplog.records


def test_generators_in_callbacks_are_named(caplog):
    thing = Thing(numbers=iter(number for number in range(9)))
    state = ReachedState({"root": thing})
    next(thing.numbers)
    with caplog.at_level(logging.WARNING):
        state.dump()
    assert "`root.numbers` changes during training and is a generator" in caplog.text


def test_iterators_of_plain_things_come_back():
    later = carried(lambda: Thing(rows=iter([1, 2, 3])), lambda one: next(one.rows))
    assert list(later.rows) == [2, 3]


def test_array_without_dimensions_comes_back():
    later = carried(lambda: Thing(value=np.array(1.0)), lambda one: one.value.fill(2.0))
    assert later.value == 2.0


def traced_step():
    """Return an object with a step that uses a variable of its closure."""
    counter = tf.Variable(0.0)

    @tf.function
    def step():
        return counter.assign_add(1.0)

    return Thing(step=step)


def test_variables_of_a_traced_function_come_back():
    later = carried(traced_step, lambda one: [one.step() for _ in range(3)])
    assert float(later.step()) == 4.0


def test_variables_that_only_a_trace_has_are_found():
    # An object of a library is not followed.
    holder = tf.Module()
    holder.count = tf.Variable(0.0)
    step = tf.function(lambda: holder.count.assign_add(1.0))
    state = ReachedState({"root": Thing(step=step)})
    step()
    assert [item.path for item in state.variables()] == ["root.step.variables[0]"]


def test_data_is_left_out_with_what_only_it_leads_to():
    def make():
        shared = [3]
        data = Thing(rows=[1], own=[2], shared=shared)
        return data, Thing(data=data, shared=shared)

    data, root = make()
    state = ReachedState({"root": root})
    state.leave_out([data])
    for rows in (data.rows, data.own, root.shared):
        rows.append(4)
    later_data, later = make()
    ReachedState({"root": later}).load(state.dump())
    assert (later_data.rows, later_data.own, later.shared) == ([1], [2], [3, 4])
