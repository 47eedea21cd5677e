"""Parts of a step that run by turns and meet: in plain Python, and while a graph is traced."""

from __future__ import annotations

import threading

import keras
import pytest
import tensorflow as tf

from det_keras.keras.distributed.lockstep import Lockstep


@pytest.fixture
def turns():
    return []


@pytest.fixture
def make(turns):
    def make_lockstep(count=3):
        return Lockstep(
            count, lambda index: turns.append(f"enter {index}"), lambda index: turns.append(f"leave {index}")
        )

    return make_lockstep


def living():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("det-part-")]


def test_parts_run_by_turns_and_get_what_was_made_of_all_values(make, turns):
    lockstep = make()

    def part(index):
        turns.append(f"begin {index}")
        met = lockstep.merge(index, lambda values: list(values))
        turns.append(f"end {index}")
        return [*met, index]

    assert lockstep.run(part) == [[0, 1, 2, index] for index in range(3)]
    assert turns == [
        f"{what} {index}"
        for act in ("begin", "end")
        for index in range(3)
        for what in ("enter", act, "leave")
    ]
    assert living() == []


def test_parts_of_a_graph_meet_within_it(make):
    @tf.function
    def step(x):
        lockstep = make()

        def part(index):
            (total,) = lockstep.merge([x[index] * 2.0], lambda values: [tf.add_n([v for (v,) in values])])
            return total + float(index)

        return lockstep.run(part)

    found = step(tf.constant([1.0, 2.0, 3.0]))
    assert [float(value) for value in found] == [12.0, 13.0, 14.0]


def test_tapes_and_scopes_of_keras_are_those_of_each_part(make):
    lockstep = make(2)
    weight = tf.Variable(3.0)

    def part(index):
        with tf.GradientTape() as tape, keras.name_scope(f"part{index}"):
            loss = weight ** (index + 2)
            met = lockstep.merge(loss, sum)
            gradient = tape.gradient(loss, weight)
        return float(met), float(gradient)

    assert lockstep.run(part) == [(36.0, 6.0), (36.0, 27.0)]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_error_of_a_part_ends_all_of_them(failing, make):
    lockstep = make()
    ended = []

    def part(index):
        try:
            lockstep.merge(index, sum)
            if index == failing:
                raise KeyError(index)
            lockstep.merge(index, sum)
        finally:
            ended.append(index)

    with pytest.raises(KeyError, match=str(failing)):
        lockstep.run(part)
    assert sorted(ended) == [0, 1, 2]
    assert living() == []


def test_error_where_values_are_combined_ends_all_parts(make):
    lockstep = make()

    def part(index):
        lockstep.merge(index, lambda values: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        lockstep.run(part)
    assert living() == []


def test_parts_that_take_different_ways_are_refused(make):
    lockstep = make()

    def part(index):
        if index:
            lockstep.merge(index, sum)

    with pytest.raises(RuntimeError, match="different ways for different virtual workers"):
        lockstep.run(part)
    assert living() == []


def test_meeting_in_a_branch_of_the_graph_is_refused(make):
    @tf.function
    def step(x):
        lockstep = make(2)

        def part(index):
            return tf.cond(x > 0, lambda: lockstep.merge(x, sum), lambda: x)

        return lockstep.run(part)

    with pytest.raises(ValueError, match=r"inside\s+`tf\.cond`"):
        step(tf.constant(1.0))
    assert living() == []


def test_exit_in_a_part_ends_the_process(make):
    def part(index):
        raise SystemExit(3)

    with pytest.raises(SystemExit, match="3"):
        make().run(part)
    assert living() == []


def test_summaries_of_a_step_are_written(make, tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default(step=1):
        assert all(make().run(lambda index: bool(tf.summary.scalar("loss", float(index)))))
