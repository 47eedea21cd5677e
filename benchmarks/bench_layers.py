"""Norms of weights and gradients by layer: a step that records them against one that does not, and a report of them.

Both sides are Keras's own `fit`, whose optimizer records norms on one of them: that is all that `profiling.layers` adds
to a step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from measure import costs_in_turns, report, timed

# isort: split
import keras
import numpy as np

from det_keras.keras.gradient_norms import record_norms
from det_keras.keras.training.boundaries.layers import LayersCallback

STEPS, TURNS = 100, 15


def model_of(layers: int, units: int) -> keras.Model:
    """Return a model with two variables for each layer."""
    hidden = [keras.layers.Dense(units, activation="relu") for _ in range(layers - 1)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])


def training(
    layers: int, units: int, batch_size: int, *, records: bool
) -> tuple[keras.Model, Callable[[], None]]:
    """Return a compiled model, and a function that trains it."""
    model, optimizer = model_of(layers, units), keras.optimizers.Adam()
    if records:
        record_norms(optimizer)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rows = STEPS * batch_size

    def train() -> None:
        model.fit(x[:rows], y[:rows], batch_size=batch_size, verbose=0)

    train()
    return model, train


rng = np.random.RandomState(0)
x, y = rng.rand(STEPS * 256, 64).astype("float32"), rng.randint(0, 10, STEPS * 256)
for name, layers, units, batch_size, goal in (
    ("6 variables, batches of 32", 3, 256, 32, 1.15),
    ("6 variables, batches of 256", 3, 256, 256, 1.1),
    ("40 small variables, batches of 32", 20, 32, 32, 1.3),
):
    _, without = training(layers, units, batch_size, records=False)
    model, recording = training(layers, units, batch_size, records=True)
    plain, own = costs_in_turns(TURNS, without, recording)
    wall, processor = own.ratios(plain)
    detail = f"step {1000 * statistics.median(plain.wall) / STEPS:.2f} ms without"
    report(f"norms by layer, {name}", wall, goal=goal, detail=detail)
    report(f"norms by layer, {name}, processor time", processor, goal=goal)
    callback = LayersCallback(None, lambda m=model: m.trainable_variables, lambda m=model: [m.optimizer])
    report_ms = 1000 * statistics.median(timed(callback.norms) for _ in range(TURNS))
    report(f"a report of norms, {name}", report_ms, unit="ms", goal=20)
