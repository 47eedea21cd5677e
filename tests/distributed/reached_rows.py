"""Trainings on several workers that hold state in many ways, with what each rank holds of it.

    python reached_rows.py FOLDER NAME [KILL_AFTER]

``FOLDER/rank-<r>.json`` gets what the script holds on that rank at its end. With a number, every rank kills itself when
it has trained so many batches.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import det_keras as det
from det_keras.keras.fit.callback_list import SeamlessCallbackList
from det_keras.keras.training.progress import Progress

# Of one worker: a stateful layer needs batches of one size.
BATCH, STEPS = 4, 5


class LeftError(Exception):
    """Leaves a training, with a value of its rank."""


class Rows(keras.utils.PyDataset):
    """Global batches, with noise of a stream that all trainings share."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.rng, self.size = np.random.default_rng(3), size * BATCH
        self.x = np.random.RandomState(0).normal(size=(STEPS * self.size, 2, 3)).astype("float32")

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x = self.x[index * self.size :][: self.size]
        return x + self.rng.normal(size=x.shape).astype("float32"), x.sum((1, 2))[:, None]


class Keeper(keras.callbacks.Callback):
    """Holds another model, plain values, and what only this rank has."""

    def __init__(self, rank: int, at: int | None = None) -> None:
        super().__init__()
        self.teacher = network()
        self.rank, self.at = rank, at
        self.rng, self.drawn, self.batches = np.random.default_rng(rank), [], 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Follow the model, draw, and leave at one batch."""
        for ours, theirs in zip(self.teacher.weights, self.model.weights, strict=True):
            ours.assign(0.5 * ours + 0.5 * theirs)
        self.drawn.append(float(self.rng.normal()))
        self.batches += 1
        if self.batches == self.at:
            raise LeftError("of rank", self.rank)


def network() -> keras.Model:
    inputs = keras.Input(batch_shape=(BATCH, 2, 3))
    hidden = layers.LSTM(3, stateful=True)(inputs)
    return keras.Model(inputs, layers.Dense(1)(layers.Dropout(0.3)(hidden)))


def fits(context: Any) -> dict[str, Any]:
    """Two fits: an exception leaves the first."""
    rank = context.distributed.rank
    data = context.wrap_data(Rows(context.distributed.size))
    seen = tf.Variable(float(rank))

    def loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        seen.assign_add(tf.reduce_mean(tf.abs(y_pred)))
        return tf.reduce_mean((y_true - y_pred) ** 2, -1) * (1.0 + 0.01 * tf.stop_gradient(seen))

    model, notes = network(), []
    model.compile(context.wrap_optimizer(keras.optimizers.Adam(1e-2)), loss)
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: notes.append(logs["loss"] + rank))
    first, second, left = Keeper(rank, at=STEPS + 3), Keeper(rank), None
    try:
        context.fit(model, data, epochs=4, callbacks=[first, note], verbose=0, validate=False)
    except LeftError as error:
        left = error.args
    between = [np.asarray(seen).tolist(), *(layer.tolist() for layer in model.get_weights())]
    states = [np.asarray(state).tolist() for state in model.layers[1].states]
    model.optimizer.learning_rate = 0.5 * model.optimizer.learning_rate
    history = context.fit(model, data, epochs=3, callbacks=[second, note], verbose=0, validate=False)
    return {
        "weights": digest(model.get_weights()),
        "optimizer": digest([variable.value for variable in model.optimizer.variables]),
        "states": digest(model.layers[1].states),
        "loose": np.asarray(seen).tolist(),
        "left": left,
        "between": digest([between, states]),
        "own": digest([states]),
        "callbacks": [[one.drawn, one.batches, digest(one.teacher.get_weights())] for one in (first, second)],
        "notes": notes,
        "history": history.history,
        "data": data.rng.bit_generator.state["state"]["state"] if rank == 0 else None,
    }


ROWS = {"fits": fits}


def digest(values: Any) -> str:
    return hashlib.sha256(repr([np.asarray(value).tolist() for value in _flat(values)]).encode()).hexdigest()[
        :16
    ]


def _flat(values: Any) -> list[Any]:
    return [
        item for value in values for item in (_flat(value) if isinstance(value, list | tuple) else [value])
    ]


def main(folder: Path, name: str, kill_after: int | None) -> None:
    """Train, and leave what the script holds."""
    trained = {"batches": 0}

    def counted(original: Callable[..., None]) -> Callable[..., None]:
        def end_batch(*arguments: Any, **options: Any) -> None:
            original(*arguments, **options)
            trained["batches"] += 1
            if trained["batches"] == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)

        return end_batch

    # Of a fit, and of a loop written by hand.
    SeamlessCallbackList.on_train_batch_end = counted(SeamlessCallbackList.on_train_batch_end)
    Progress.advance = counted(Progress.advance)
    tf.config.experimental.enable_op_determinism()
    config = {"min_checkpoint_period": {"batches": 2}, "optimizations": {"divergence_check_period": 2}}
    with det.keras.init(run_dir=folder / "run", seed=11, config=config) as context:
        found = ROWS[name](context)
        rank = context.distributed.rank
        if rank == 0:
            lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
            found["reports"] = [
                {key: value for key, value in line.items() if key != "time"} for line in lines
            ]
    (folder / f"rank-{rank}.json").write_text(json.dumps({**trained, "found": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
