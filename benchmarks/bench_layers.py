"""Norms of weights and gradients by layer: training with them against training without, each over several steps."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from measure import in_turns, report

# isort: split
import keras
import numpy as np

import det_keras as det

SAMPLES, EPOCHS, TURNS = 8_000, 1, 9


def dense() -> keras.Model:
    """Return a model with few variables, whose step takes 1 to 2 ms on a CPU."""
    hidden = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])


def deep() -> keras.Model:
    """Return a model with 100 variables, of which each is small: what the ops themselves cost."""
    hidden = [keras.layers.Dense(32, activation="relu") for _ in range(49)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])


def training(build: Callable[[], keras.Model], batch_size: int, *, layers: bool) -> Callable[[], None]:
    """Return a function that trains a model of its own, with norms or without."""
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    config = {"profiling": {"enabled": False, "layers": layers}}

    def train() -> None:
        with (
            tempfile.TemporaryDirectory() as folder,
            det.keras.init(config=config, run_dir=folder, seed=1) as context,
        ):
            context.fit(
                model, x, y, batch_size=batch_size, epochs=EPOCHS, verbose=0, shuffle=False, validate=False
            )

    train()
    return train


rng = np.random.RandomState(0)
x, y = rng.rand(SAMPLES, 64).astype("float32"), rng.randint(0, 10, SAMPLES)
for name, build, batch_size, goal in (
    ("6 variables, batches of 32", dense, 32, 1.15),
    ("6 variables, batches of 256", dense, 256, 1.1),
    ("100 small variables, batches of 32", deep, 32, 1.3),
):
    off, on = in_turns(
        TURNS, training(build, batch_size, layers=False), training(build, batch_size, layers=True)
    )
    detail = f"step {1000 * off * batch_size / (EPOCHS * SAMPLES):.2f} ms without"
    report(f"norms by layer, {name}", on / off, goal=goal, detail=detail)
