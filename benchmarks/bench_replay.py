"""What it costs to read batches again on a resume, as a ratio to training on the same batches.

    python benchmarks/bench_replay.py [--batches 200]

Each pipeline is trained for some batches of one epoch, interrupted, and resumed; the time that `replay` takes stands
beside the time that training took for the same batches.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import det_keras as det
from det_keras.keras.data import pydataset, tfdata
from det_keras.keras.data.tfdata import replay

BATCH, SIZE = 32, 24


class Interrupted(BaseException):
    """Ends the first training."""


class StopAt(keras.callbacks.Callback):
    """Interrupts after a number of batches, and takes the time from the first one's end."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self._batches = batches
        self.started: float | None = None
        self.train_s = 0.0

    def get_state(self) -> None: ...

    def load_state(self, state: None) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.started = self.started or time.perf_counter()
        if batch + 1 == self._batches:
            self.train_s = (time.perf_counter() - self.started) * self._batches / (self._batches - 1)
            raise Interrupted


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x: float32, (count, 24, 24, 3), and y: int64, (count,)."""
    rng = np.random.RandomState(0)
    return rng.uniform(size=(count, SIZE, SIZE, 3)).astype("float32"), rng.randint(0, 10, count)


def augmented(count: int) -> tf.data.Dataset:
    """Return a pipeline with Keras's augmentation layers."""
    layers = keras.Sequential(
        [keras.layers.RandomFlip(seed=1), keras.layers.RandomTranslation(0.1, 0.1, seed=2)]
    )
    rows = tf.data.Dataset.from_tensor_slices(images(count)).shuffle(512, seed=3).batch(BATCH)
    return rows.map(lambda x, y: (layers(x, training=True), y)).prefetch(2)


def generated(count: int) -> tf.data.Dataset:
    """Return a pipeline over a Python generator."""
    x, y = images(count)
    spec = (tf.TensorSpec(x.shape[1:], tf.float32), tf.TensorSpec((), tf.int64))
    rows = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)
    return rows.batch(BATCH).prefetch(2)


class Drawn(keras.utils.PyDataset):
    """Items with a random stream of their own."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.x, self.y = images(count)
        self.rng = np.random.default_rng(1)

    def __len__(self) -> int:
        return len(self.x) // BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        noise = self.rng.normal(size=(BATCH, SIZE, SIZE, 3)).astype("float32")
        return self.x[rows] + 0.1 * noise, self.y[rows]


PIPELINES = {
    "augmentation layers in map": augmented,
    "from_generator": generated,
    "PyDataset that draws": Drawn,
}


def model() -> Any:
    """Return a small compiled convolutional network."""
    net = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    net.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


def measure(make: Any, batches: int, run_dir: Path) -> tuple[float, float]:
    """Return the seconds of training on some batches, and of reading them again."""
    replay_s = 0.0

    def timed(*arguments: Any) -> Any:
        nonlocal replay_s
        started = time.perf_counter()
        result = replay(*arguments)
        replay_s += time.perf_counter() - started
        return result

    stop = StopAt(batches)
    config = {"min_checkpoint_period": {"batches": batches - 1}, "checkpoint_policy": "none"}
    for callback in (stop, StopAt(batches + 5)):
        keras.backend.clear_session()
        with (
            mock.patch.object(tfdata, "replay", timed),
            mock.patch.object(pydataset, "replay", timed),
            det.keras.init(config=config, run_dir=run_dir, seed=1) as context,
            contextlib.suppress(Interrupted),
        ):
            context.fit(
                model(),
                make((batches + 20) * BATCH),
                epochs=1,
                validate=False,
                verbose=0,
                callbacks=[callback],
            )
    return stop.train_s, replay_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=200)
    batches = parser.parse_args().batches
    print(f"| {'pipeline':28} | training, s | reading again, s | ratio |")
    print(f"| {'-' * 28} | ----------: | ---------------: | ----: |")
    for name, make in PIPELINES.items():
        with tempfile.TemporaryDirectory(prefix="det-replay-") as folder:
            train_s, replay_s = measure(make, batches, Path(folder) / "run")
        print(f"| {name:28} | {train_s:11.2f} | {replay_s:16.2f} | {replay_s / train_s:5.2f} |", flush=True)


if __name__ == "__main__":
    main()
