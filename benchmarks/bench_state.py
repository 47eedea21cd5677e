"""What large state costs: a step with many variables, and a callback that holds an array of 100 MB.

``DET_KERAS_VARIABLES`` is the number of variables, 1,000 by default; Keras takes minutes to trace a step with 10,000.

Each is trained by `model.fit` and by `context.fit` in turns, and by `context.fit` with few and with many checkpoints,
whose difference is what one of them costs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from measure import costs_in_turns, report

# isort: split
import keras
import numpy as np
import tensorflow as tf

import det_keras as det

TURNS = int(os.environ.get("DET_KERAS_TURNS", "5"))
VARIABLES = int(os.environ.get("DET_KERAS_VARIABLES", "1000"))
ARRAY_BYTES, BATCH, STEPS, PERIOD = 100 << 20, 32, 60, 5


class Many(keras.layers.Layer):
    """Adds many numbers, a variable each."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the variables."""
        self.numbers = [self.add_weight(shape=(), name=f"number_{index}") for index in range(VARIABLES)]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Return the input and the sum of the numbers."""
        return x + tf.add_n([tf.convert_to_tensor(number) for number in self.numbers])


class Held(keras.callbacks.Callback):
    """Holds an array and changes some of it after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.array = np.zeros(ARRAY_BYTES // 8)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Change a number."""
        self.array[batch] += 1.0


rng = np.random.RandomState(0)
X, Y = rng.rand(BATCH * STEPS, 16).astype("float32"), rng.rand(BATCH * STEPS, 1).astype("float32")


def measure(
    name: str, model: keras.Model, callbacks: Callable[[], list[keras.callbacks.Callback]] = list
) -> None:
    """Print what a `fit` of some steps, and a checkpoint, cost."""
    options = {
        "batch_size": BATCH,
        "epochs": 1,
        "verbose": 0,
        "shuffle": False,
        "validation_data": (X[:BATCH], Y[:BATCH]),
    }

    def plain() -> None:
        model.fit(X, Y, callbacks=callbacks(), **options)

    def managed(batches: int) -> Callable[[], None]:
        config = {"checkpoint_policy": "none", "min_checkpoint_period": {"batches": batches}}

        def turn() -> None:
            with (
                tempfile.TemporaryDirectory() as folder,
                det.keras.init(run_dir=folder, seed=1, config=config) as context,
            ):
                context.fit(model, X, Y, callbacks=callbacks(), **options)

        return turn

    sides = plain, managed(STEPS), managed(PERIOD)
    for side in sides:
        side()
    of_plain, few, many = costs_in_turns(TURNS, *sides)
    wall, processor = few.ratios(of_plain)
    report(
        f"{name}: fit of {STEPS} batches, wall clock",
        wall,
        detail=f"processor time {processor:.3f}; plain {of_plain.wall_s:.2f} s, ours {few.wall_s:.2f} s",
    )
    further = STEPS // PERIOD - 1
    report(
        f"{name}: a checkpoint",
        (many.wall_s - few.wall_s) / further,
        unit="s",
        detail=f"processor time {(many.processor_s - few.processor_s) / further:.3f} s",
    )


def small() -> keras.Model:
    """Return a network of four variables."""
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    return model


def wide() -> keras.Model:
    """Return a network of many variables."""
    model = keras.Sequential([keras.Input((16,)), Many(), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    return model


if __name__ == "__main__":
    measure("four variables", small())
    measure("a callback with 100 MB", small(), lambda: [Held()])
    measure(f"{VARIABLES:,} variables", wide())
