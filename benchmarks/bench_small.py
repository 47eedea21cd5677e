"""What small trainings pay for metrics and checkpoints: wall clock and processor time, beside Keras's own callbacks.

The sides take turns. Processor time is that of the process and of its children, and is less noisy than the wall clock
on a machine that others use.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import costs_in_turns, report

# isort: split
import keras
import numpy as np

import det_keras as det

PERIOD, TURNS = 50, int(os.environ.get("DET_KERAS_TURNS", "9"))
EACH_EPOCH: dict[str, object] = {}
EACH_PERIOD: dict[str, object] = {"checkpoint_policy": "none", "min_checkpoint_period": {"batches": PERIOD}}


def compiled(*layers: keras.layers.Layer) -> keras.Model:
    """Return a compiled classifier."""
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model


def dense() -> keras.Model:
    """Return the 784-128-10 network."""
    return compiled(keras.Input((784,)), keras.layers.Dense(128, activation="relu"))


def convolutional() -> keras.Model:
    """Return a small convolutional network."""
    return compiled(
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
    )


class Training:
    """One model with its data, trained by several sides in turns.

    Args:
        make: returns a new compiled model.
        shape: shape of a sample.
        batch: samples per batch.
        steps: batches per epoch.
        epochs: epochs of one turn.
    """

    def __init__(
        self, make: Callable[[], keras.Model], shape: tuple[int, ...], batch: int, steps: int, epochs: int
    ) -> None:
        self.make = make
        rng = np.random.RandomState(0)
        x, y = rng.rand(batch * steps, *shape).astype("float32"), rng.randint(0, 10, batch * steps)
        self.data = x, y
        self.options = {
            "batch_size": batch,
            "epochs": epochs,
            "verbose": 0,
            "validation_data": (x[:256], y[:256]),
        }
        self.steps = steps * epochs

    def plain(
        self, callbacks: Callable[[Path], list[keras.callbacks.Callback]] | None = None
    ) -> Callable[[], None]:
        """Return a turn of `model.fit` with callbacks that get an empty directory."""
        model = self.make()

        def turn() -> None:
            with tempfile.TemporaryDirectory() as folder:
                made = callbacks(Path(folder)) if callbacks is not None else []
                model.fit(*self.data, callbacks=made, **self.options)

        return turn

    def managed(self, config: dict[str, object]) -> Callable[[], None]:
        """Return a turn of `context.fit` in an empty run directory."""
        model = self.make()

        def turn() -> None:
            with (
                tempfile.TemporaryDirectory() as folder,
                det.keras.init(run_dir=folder, seed=1, config=config) as context,
            ):
                context.fit(model, *self.data, **self.options)

        return turn


def backup(frequency: str | int) -> Callable[[Path], list[keras.callbacks.Callback]]:
    """Return BackupAndRestore that saves so often."""
    return lambda folder: [keras.callbacks.BackupAndRestore(str(folder / "backup"), save_freq=frequency)]


def saved(frequency: str | int) -> Callable[[Path], list[keras.callbacks.Callback]]:
    """Return ModelCheckpoint that saves whole models so often."""
    return lambda folder: [keras.callbacks.ModelCheckpoint(str(folder / "m.keras"), save_freq=frequency)]


def compare(
    name: str, training: Training, frequency: str | int, config: dict[str, object], goal: float
) -> None:
    """Measure the sides against plain `model.fit`, and print a line for each."""
    sides = {
        "": training.managed(config),
        ", BackupAndRestore": training.plain(backup(frequency)),
        ", ModelCheckpoint": training.plain(saved(frequency)),
    }
    plain = training.plain()
    for action in (plain, *sides.values()):
        action()
    of_plain, *others = costs_in_turns(TURNS, plain, *sides.values())
    for side, cost in zip(sides, others, strict=True):
        wall, processor = cost.ratios(of_plain)
        detail = f"wall clock {wall:.3f}; plain step {1000 * of_plain.wall_s / training.steps:.2f} ms"
        report(f"{name}{side}: processor time", processor, goal=None if side else goal, detail=detail)


def fixed() -> None:
    """Measure what a `fit` of two batches costs more than a plain one."""
    training = Training(dense, (784,), 128, 2, 1)
    with tempfile.TemporaryDirectory() as folder:
        numbers = itertools.count()
        model, plain = training.make(), training.plain()

        def managed() -> None:
            with det.keras.init(run_dir=f"{folder}/{next(numbers)}", seed=1) as context:
                context.fit(model, *training.data, **training.options)

        plain()
        managed()
        of_plain, of_ours = costs_in_turns(3 * TURNS, plain, managed)
    report(
        "fixed cost of a fit",
        of_ours.wall_s - of_plain.wall_s,
        unit="s",
        goal=0.02,
        detail=f"processor time {of_ours.processor_s - of_plain.processor_s:.3f} s; plain fit {of_plain.wall_s:.3f} s",
    )


if __name__ == "__main__":
    fixed()
    mlp = Training(dense, (784,), 128, 200, 3)
    cnn = Training(convolutional, (28, 28, 1), 32, 200, 2)
    compare("784-128-10, checkpoint each epoch", mlp, "epoch", EACH_EPOCH, 1.01)
    compare(f"784-128-10, checkpoint every {PERIOD} batches", mlp, PERIOD, EACH_PERIOD, 1.03)
    compare("small CNN, checkpoint each epoch", cnn, "epoch", EACH_EPOCH, 1.01)
    compare(f"small CNN, checkpoint every {PERIOD} batches", cnn, PERIOD, EACH_PERIOD, 1.05)
