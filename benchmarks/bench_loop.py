"""A training loop written by hand, with det_keras and without: the same model, data and step."""

from __future__ import annotations

import tempfile

from measure import costs_in_turns, report

# isort: split
import keras
import numpy as np
import tensorflow as tf

import det_keras as det

SAMPLES, BATCH, EPOCHS, TURNS = 16_000, 32, 2, 9


class Training:
    """A model whose step takes 1 to 3 ms on a CPU, with its own optimizer and step."""

    def __init__(self) -> None:
        self.model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(512, activation="relu"),
                keras.layers.Dense(512, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        self.optimizer = keras.optimizers.Adam()
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.step = tf.function(self._step)

    def _step(self, batch_x: tf.Tensor, batch_y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(batch_y, self.model(batch_x, training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss


rng = np.random.RandomState(0)
x, y = rng.rand(SAMPLES, 64).astype("float32"), rng.randint(0, 10, SAMPLES)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES).batch(BATCH).prefetch(4)
plain, managed = Training(), Training()


def ours() -> None:
    """Train in a fresh run directory, with a report and a checkpoint each epoch."""
    with tempfile.TemporaryDirectory() as folder, det.keras.init(run_dir=folder, seed=1) as context:
        context.track(model=managed.model, optimizer=managed.optimizer)
        for _ in context.epochs(EPOCHS):
            for batch_x, batch_y in context.batches(dataset):
                context.report(loss=managed.step(batch_x, batch_y))


def theirs() -> None:
    """Train with a plain loop that adds up its loss."""
    for _ in range(EPOCHS):
        total = tf.zeros(())
        for batch_x, batch_y in dataset:
            total += plain.step(batch_x, batch_y)
        float(total)


theirs(), ours()
of_plain, of_ours = costs_in_turns(TURNS, theirs, ours)
step_ms = 1000 * of_plain.wall_s / (EPOCHS * SAMPLES / BATCH)
for what, ratio in zip(("time", "processor time"), of_ours.ratios(of_plain), strict=True):
    report(
        f"loop written by hand, {what} against a plain one",
        ratio,
        goal=1.02,
        detail=f"plain step {step_ms:.2f} ms",
    )
