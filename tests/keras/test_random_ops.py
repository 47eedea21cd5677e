"""Random numbers whose state cannot be saved are named when training starts."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from kinds import arrays

import det_keras as det


class Noisy(keras.layers.Layer):
    """Adds noise, with or without a state that can be saved."""

    def __init__(self, *, is_exact, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(3)
        self.is_exact = is_exact

    def call(self, x):
        if self.is_exact:
            return x + keras.random.normal(tf.shape(x), seed=self.seeds)
        return x + tf.random.normal(tf.shape(x))


@pytest.mark.parametrize("is_exact", [True, False], ids=["keras.random", "tf.random"])
def test_layer_that_draws_with_tf_random_is_named_once(tmp_path, caplog, is_exact):
    keras.backend.clear_session()
    x, y = arrays()
    model = keras.Sequential(
        [
            keras.Input((x.shape[1],)),
            keras.layers.Dense(4),
            Noisy(is_exact=is_exact, name="my_noise"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer="sgd", loss="mse")
    with det.keras.init(run_dir=tmp_path / "run", seed=1) as context:
        context.fit(model, x, y, epochs=2, validate=False, verbose=0)
    told = [record.getMessage() for record in caplog.records if "tf.random" in record.getMessage()]
    assert len(told) == (0 if is_exact else 1)
    assert is_exact or ("`my_noise`" in told[0] and "SeedGenerator" in told[0])
