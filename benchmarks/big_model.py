"""The model whose checkpoints are measured, and a callback that notes when its batches begin and end."""

from __future__ import annotations

import time

import keras
import numpy as np

__all__ = ["UNITS", "Watch", "build"]

UNITS, LAYERS = 2_500, 8


class Watch(keras.callbacks.Callback):
    """Notes when each batch begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: list[float] = []
        self.ends: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self.begins.append(time.perf_counter())

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.ends.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return how long each batch but the first took, with what happened before it."""
        return list(np.diff(self.ends))

    def between(self, batch: int) -> float:
        """Return for how long the training thread was held between a batch, counted from 1, and the next."""
        return self.begins[batch] - self.ends[batch - 1]


def build() -> keras.Model:
    """Return a model of 50 million parameters."""
    layers = [keras.layers.Dense(UNITS, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((UNITS,)), *layers])
    model.compile(optimizer="adam", loss="mse")
    return model
