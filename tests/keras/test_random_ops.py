"""Random numbers whose state cannot be saved are named when training starts."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from kinds import arrays, network

import det_keras as det


class Noisy(keras.layers.Layer):
    """Adds noise, with or without a state that can be saved."""

    def __init__(self, kind, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(3)
        self.kind = kind

    def call(self, x):
        if self.kind == "keras.random":
            return x + keras.random.normal(tf.shape(x), seed=self.seeds)
        if self.kind == "normal":
            return x + tf.random.normal(tf.shape(x))
        return tf.random.shuffle(x)


@pytest.mark.parametrize(("kind", "is_exact"), [("keras.random", True), ("normal", True), ("shuffle", False)])
def test_layer_whose_draws_cannot_be_saved_is_named_once(tmp_path, caplog, kind, is_exact):
    keras.backend.clear_session(free_memory=False)
    x, y = arrays()
    model = keras.Sequential(
        [
            keras.Input((x.shape[1],)),
            keras.layers.Dense(4),
            Noisy(kind, name="my_noise"),
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


@pytest.mark.parametrize("kind", ["from_generator", "numpy_function", "ops"])
def test_python_code_in_a_pipeline_is_named_when_training_starts(tmp_path, caplog, kind):
    keras.backend.clear_session(free_memory=False)
    x, y = arrays()
    rows = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x * 2, y))
    if kind == "numpy_function":
        rows = rows.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(abs, [x], tf.float32), x.shape), y))
    if kind == "from_generator":
        spec = (tf.TensorSpec(x.shape[1:], x.dtype), tf.TensorSpec((), y.dtype))
        rows = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)
    with det.keras.init(run_dir=tmp_path / "run", seed=1) as context:
        context.fit(network(optimizer="sgd"), rows.batch(8), validate=False, verbose=0)
    told = [record for record in caplog.records if "--verify-resume" in record.getMessage()]
    assert len(told) == (0 if kind == "ops" else 1)
