"""Handwritten digits: a plain Keras script, with a few lines that make it a managed training job.

Alone:           python train.py
As experiment:   det experiment create const.yaml . --follow
As search:       det experiment create adaptive_asha.yaml . --follow
"""

from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import det_keras as det

VALIDATION_SAMPLES = 360


def load_data():
    """Return training and validation data: x float32, (samples, 64), pixels 0 to 1; y int64, (samples,)."""
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    x = (digits.data / 16.0).astype("float32")[order]
    y = digits.target[order]
    return (x[VALIDATION_SAMPLES:], y[VALIDATION_SAMPLES:]), (x[:VALIDATION_SAMPLES], y[:VALIDATION_SAMPLES])


def build_model(hparams):
    """Return a small convolutional network, not compiled."""
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(hparams["filters"], 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(hparams["dropout"]),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    context = det.keras.init(config=Path(__file__).with_name("const.yaml"))
    hparams = context.training.hparams

    (x, y), (x_val, y_val) = load_data()
    x, y = context.wrap_data(x, y)
    x_val, y_val = context.wrap_data(x_val, y_val)

    model = build_model(hparams)
    settings = {"learning_rate": hparams["learning_rate"]}
    chosen = {"class_name": hparams.get("optimizer", "adam"), "config": settings}
    optimizer = context.wrap_optimizer(keras.optimizers.get(chosen))
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    context.fit(
        model,
        x=x,
        y=y,
        validation_data=(x_val, y_val),
        batch_size=context.distributed.shard_batch_size(hparams["global_batch_size"]),
        epochs=20,
    )
    metrics = context.evaluate(model, x_val, y_val)
    print(f"accuracy: {metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main()
