"""An iterator over arrays serves for many epochs: each epoch has its own batches, wherever the one before it ended."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import det_keras as det

SAMPLES, BATCH, EPOCHS = 44, 8, 4


class Revoked(keras.callbacks.Callback):
    """Asks for a stop inside of each epoch, and revokes it at the end of the epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = False


def network(**compiled):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compiled)
    return model


@pytest.mark.parametrize(
    ("compiled", "callbacks"),
    [({}, []), ({}, [Revoked]), ({"steps_per_execution": 4}, [])],
    ids=["whole_epochs", "stop_revoked", "steps_per_execution"],
)
def test_epochs_have_the_batches_of_plain_keras(tmp_path, compiled, callbacks):
    x = np.random.RandomState(0).rand(SAMPLES, 3).astype("float32")
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    plain, managed = network(**compiled), network(**compiled)
    plain.fit(x, x.sum(1), callbacks=[make() for make in callbacks], **options)
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        context.fit(managed, x, x.sum(1), callbacks=[make() for make in callbacks], validate=False, **options)
    np.testing.assert_array_equal(managed.get_weights()[0], plain.get_weights()[0])
    assert int(managed.optimizer.iterations) == int(plain.optimizer.iterations)
