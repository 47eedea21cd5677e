"""`context.fit` against plain `model.fit`, with metrics and a checkpoint each epoch on."""

from __future__ import annotations

import tempfile

from measure import in_turns, report

# isort: split
import keras
import numpy as np

import det_keras as det

SAMPLES, BATCH, EPOCHS, TURNS = 32_000, 32, 3, 7


def build() -> keras.Model:
    """Return a model whose step takes 1 to 2 ms on a CPU."""
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model


rng = np.random.RandomState(0)
x, y = rng.rand(SAMPLES, 64).astype("float32"), rng.randint(0, 10, SAMPLES)
validation = (x[:1000], y[:1000])
plain, managed = build(), build()
plain.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, validation_data=validation)


def ours() -> None:
    """Train in a fresh run directory, so that nothing is resumed."""
    with tempfile.TemporaryDirectory() as folder, det.keras.init(run_dir=folder, seed=1) as context:
        context.fit(managed, x, y, batch_size=BATCH, epochs=EPOCHS, verbose=2, validation_data=validation)


def theirs() -> None:
    """Train with Keras alone."""
    plain.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=2, validation_data=validation)


ours()
of_keras, of_ours = in_turns(TURNS, theirs, ours)
step_ms = 1000 * of_keras / (EPOCHS * SAMPLES / BATCH)
report("fit, against plain model.fit", of_ours / of_keras, goal=1.02, detail=f"plain step {step_ms:.2f} ms")
