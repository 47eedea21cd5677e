"""Calls of functions of arrays from graphs."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import tensorflow as tf

from det_keras.keras.distributed.engines.base import ArrayCalls


def test_calls_run_in_the_order_in_which_they_were_traced():
    calls, seen = ArrayCalls(), []

    def note(number):
        return lambda array: (seen.append(number), array)[1]

    @tf.function
    def step(x):
        # Nothing but the order of the calls says which comes first.
        return [calls.call(note(number), x, x.shape) for number in range(20)]

    for _ in range(5):
        step(tf.ones(3))
    assert seen == list(range(20)) * 5


def test_traced_graphs_are_given_up_with_their_functions():
    calls = ArrayCalls()

    def trace():
        step = tf.function(lambda x: calls.call(np.negative, calls.call(np.negative, x, x.shape), x.shape))
        return weakref.ref(step.get_concrete_function(tf.TensorSpec([3])).graph)

    graphs = [trace() for _ in range(3)]
    gc.collect()
    assert [graph() for graph in graphs] == [None] * 3
