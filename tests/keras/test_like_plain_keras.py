"""Every way of feeding and calling `fit` gives what plain Keras gives.

Plain Keras runs in the same process and is the expected value; nothing is written down by hand. With
``DET_KERAS_TEST_AMOUNT=all`` drawn combinations of inputs, optimizers and arguments are compared too.
"""

from __future__ import annotations

import tempfile

import keras
import numpy as np
import pytest
from amount import AMOUNT, chosen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ways import (
    ALIKE,
    BATCH,
    OPTIMIZERS,
    ROWS,
    WAYS,
    Items,
    PlainKeras,
    Recorder,
    arrays,
    dense,
    fit,
    outcome,
    slices,
)

import det_keras as det

# `clear_session` names layers anew; the memory of the last training is freed when Python's collector comes to it,
# which is a fifth of the time less.


def plain(way):
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(11)
    return outcome(way(PlainKeras()))


def managed(way, run_dir):
    keras.backend.clear_session(free_memory=False)
    with det.keras.init(run_dir=run_dir, seed=11) as context:
        return outcome(way(context))


@pytest.mark.parametrize("name", chosen(WAYS, ALIKE, are_many=True))
def test_managed_training_is_that_of_plain_keras(name, tmp_path):
    assert managed(WAYS[name], tmp_path / "run") == plain(WAYS[name])


INPUTS = {
    "arrays": lambda: arrays(),
    "dataset": lambda: (slices().shuffle(20, seed=3).batch(BATCH).prefetch(2),),
    "dataset of unknown size": lambda: (slices().filter(lambda x, y: x[0] > -1).batch(BATCH),),
    "items": lambda: (Items(),),
}
VALIDATIONS = {
    "arrays": lambda: {"validation_data": arrays(seed=6)},
    "dataset": lambda: {"validation_data": slices().shuffle(20).batch(5)},
    "steps": lambda: {"validation_data": slices().batch(5), "validation_steps": 3},
    "seldom": lambda: {"validation_data": arrays(seed=6), "validation_freq": [2]},
}
CALLBACKS = {
    "none": list,
    "recorder": lambda: [Recorder()],
    "early stopping": lambda: [
        keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1, restore_best_weights=True)
    ],
    "falling rate": lambda: [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)],
}


@pytest.mark.skipif(AMOUNT != "all", reason="in the long mode")
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    inputs=st.sampled_from(sorted(INPUTS)),
    validation=st.sampled_from(sorted(VALIDATIONS)),
    callbacks=st.sampled_from(sorted(CALLBACKS)),
    # A schedule cannot be assigned to, and a scaled optimizer has no rate of its own.
    optimizer=st.sampled_from(sorted({*OPTIMIZERS} - {"schedule", "loss_scale"})),
    batch_size=st.integers(3, ROWS + 3),
    epochs=st.integers(1, 4),
    steps_per_execution=st.integers(1, 3),
    weights=st.sampled_from(["none", "classes", "samples"]),
    eager=st.booleans(),
)
def test_drawn_combination_is_that_of_plain_keras(
    inputs, validation, callbacks, optimizer, batch_size, epochs, steps_per_execution, weights, eager
):
    def way(trainer):
        options = {"epochs": epochs, "callbacks": CALLBACKS[callbacks](), **VALIDATIONS[validation]()}
        if inputs == "arrays":
            options["batch_size"] = batch_size
        if weights == "classes":
            options["class_weight"] = {0: 1.0, 1: 2.5}
        elif weights == "samples" and inputs == "arrays":
            options["sample_weight"] = np.linspace(0.5, 2, ROWS).astype("float32")
        execution = {"run_eagerly": True} if eager else {"steps_per_execution": steps_per_execution}
        model = dense(optimizer=OPTIMIZERS[optimizer](), **execution)
        return model, fit(trainer, model, *INPUTS[inputs](), **options)

    with tempfile.TemporaryDirectory() as folder:
        assert managed(way, folder) == plain(way)
