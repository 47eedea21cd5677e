"""A script in stages that holds state in many ways: a fit that fails, two fits on one generator, a teacher model.

In its last fit it waits once for the request to stop, where an environment variable names a file to leave then. What it
holds at its end is in the file `RESULT`.
"""

import hashlib
import json
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import det_keras as det

BATCH, STEPS = 4, 5


class StageFailedError(Exception):
    """The first stage has failed."""


class Teacher(keras.callbacks.Callback):
    """Holds a model that follows the trained one, a metric and what it has seen."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.teacher, self.mean = network(), keras.metrics.Mean()
        self.fails_at, self.seen = fails_at, []

    def on_train_batch_end(self, batch, logs=None):
        """Follow the model; fail at one batch, and wait at another one."""
        for ours, theirs in zip(self.teacher.weights, self.model.weights, strict=True):
            ours.assign(0.9 * ours + 0.1 * theirs)
        self.mean.update_state(logs["loss"])
        self.seen.append(logs["loss"])
        if len(self.seen) == self.fails_at:
            raise StageFailedError(len(self.seen))


def wait_for_stop(epoch, logs):
    """Wait once until the process is asked to stop, in the middle of the last fit."""
    mark = Path(os.environ["WAIT"]) if "WAIT" in os.environ else None
    if mark is not None and epoch == 1 and not mark.exists():
        mark.touch()
        while not context.core.preempt.is_requested:
            time.sleep(0.02)


def network():
    inputs = keras.Input(batch_shape=(BATCH, 2, 3))
    hidden = layers.LSTM(3, stateful=True)(inputs)
    return keras.Model(inputs, layers.Dense(1)(layers.Dropout(0.3)(hidden)))


def batches():
    rng = np.random.default_rng(1)
    while True:
        x = rng.normal(size=(BATCH, 2, 3)).astype("float32")
        yield x, x.sum((1, 2))[:, None]


def digest(values):
    return hashlib.sha256(repr([np.asarray(value).tolist() for value in values]).encode()).hexdigest()


context = det.keras.init()
seen = tf.Variable(1.0)


def loss(y_true, y_pred):
    seen.assign_add(tf.reduce_mean(tf.abs(y_pred)))
    return tf.reduce_mean((y_true - y_pred) ** 2, -1) * seen


model, data, notes = network(), batches(), []
note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: notes.append(logs["loss"]))
model.compile(keras.optimizers.Adam(1e-2), loss)
options = {"steps_per_epoch": STEPS, "validate": False, "verbose": 0}
first, second, failed = Teacher(fails_at=STEPS + 2), Teacher(), None
try:
    context.fit(model, data, epochs=2, callbacks=[first, note], **options)
except StageFailedError as error:
    failed = error.args
    model.optimizer.learning_rate = 5e-3
wait = keras.callbacks.LambdaCallback(on_epoch_begin=wait_for_stop)
history = context.fit(model, data, epochs=3, callbacks=[second, note, wait], **options)
found = {
    "weights": digest([*model.get_weights(), *(variable.value for variable in model.optimizer.variables)]),
    "states": digest(model.layers[1].states),
    "loose": float(seen),
    "failed": failed,
    "teachers": [
        [digest(one.teacher.get_weights()), float(one.mean.result()), one.seen] for one in (first, second)
    ],
    "notes": notes,
    "history": history.history,
    "next": next(data)[0].tolist(),
}
Path(os.environ["RESULT"]).write_text(json.dumps(found))
context.close()
