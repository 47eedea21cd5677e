"""Trainings with four virtual workers, for any number of workers: what they leave must not tell how many there were.

    python virtual_scenarios.py FOLDER NAME...

A training that was started before with the same folder goes on. With STOP_AT it ends after that batch, as a kill does.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import det_keras as det

PARTS, GLOBAL_BATCH, ROWS, EPOCHS = int(os.environ.get("PARTS", 4)), 32, 203, 3
SCENARIOS: dict[str, Callable[[], Any]] = {}
RUN = {"min_checkpoint_period": {"batches": 3}, "optimizations": {"divergence_check_period": 5}}


def images(rows: int = 195) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures; the last batch has fewer of them than there are virtual workers."""
    draw = np.random.default_rng(5)
    return draw.normal(size=(rows, 8, 8, 3)).astype("float32"), draw.integers(0, 10, rows)


def words() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(6)
    found = draw.integers(1, 50, (ROWS, 12)).astype("int32")
    found[np.arange(12) >= draw.integers(1, 13, (ROWS, 1))] = 0
    return found, found * 7 % 10


class Batches(keras.utils.PyDataset):
    """Global batches."""

    def __init__(self, arrays: tuple[np.ndarray, ...]) -> None:
        super().__init__()
        self._arrays = arrays

    def __len__(self) -> int:
        return -(-len(self._arrays[0]) // GLOBAL_BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        rows = slice(index * GLOBAL_BATCH, (index + 1) * GLOBAL_BATCH)
        return tuple(array[rows] for array in self._arrays)


def of_arrays(context: Any, arrays: tuple[np.ndarray, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    size = context.distributed.shard_batch_size(GLOBAL_BATCH)
    wrapped = context.wrap_data(*arrays)
    return wrapped if len(arrays) > 1 else (wrapped,), {"batch_size": size}


def of_pydataset(context: Any, arrays: tuple[np.ndarray, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (context.wrap_data(Batches(arrays)),), {}


def of_tf_data(context: Any, arrays: tuple[np.ndarray, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    rows = tf.data.Dataset.from_tensor_slices(arrays).shuffle(100, seed=3)
    return (context.wrap_data(rows).batch(context.distributed.shard_batch_size(GLOBAL_BATCH)),), {}


def convolutions() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.RandomFlip(),
            keras.layers.Conv2D(8, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.3),
            # In float32, because Keras cannot add a penalty in float16 to the loss.
            keras.layers.Conv2D(8, 3, activity_regularizer="l2", dtype="float32"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, kernel_regularizer="l2"),
        ]
    )


def recurrent() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((12,), dtype="int32"),
            keras.layers.Embedding(50, 8, mask_zero=True),
            keras.layers.LSTM(8, dropout=0.2, recurrent_dropout=0.2, return_sequences=True),
            keras.layers.Dense(10),
        ]
    )


class Rivals(keras.Model):
    """Two networks with an optimizer each; the second step uses what the first has changed.

    A third one follows the second, without an optimizer. A counter depends on the rows.
    """

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__()
        self.maker = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)])
        self.judge = keras.Sequential(
            [keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        )
        self.follower = keras.layers.Dense(16, trainable=False)
        self.first, self.second = first, second
        self.seeds = keras.random.SeedGenerator(4)
        self.distance = keras.metrics.Mean("distance")

    @property
    def metrics(self) -> list[Any]:
        return [self.distance]

    def call(self, x: Any) -> Any:
        return self.judge(x)

    def build(self, shape: Any) -> None:
        self.maker.build((None, 6))
        self.judge.build((None, 4))
        self.follower.build((None, 4))
        self.seen = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.built = True

    def train_step(self, data: Any) -> dict[str, Any]:
        real = keras.utils.unpack_x_y_sample_weight(data)[0]
        noise = keras.random.normal((tf.shape(real)[0], 6), seed=self.seeds)
        # From the generator of Keras.
        noise += 0.1 * keras.random.normal((tf.shape(real)[0], 6))
        self.seen.assign_add(tf.reduce_sum(tf.cast(real > 0, tf.int32)))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.judge(self.maker(noise), training=True)) - tf.reduce_mean(
                self.judge(real, training=True)
            )
        weights = self.judge.trainable_variables
        self.first.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            made = self.maker(noise, training=True)
            second = -tf.reduce_mean(self.judge(made, training=False))
        weights = self.maker.trainable_variables
        self.second.apply(tape.gradient(second, weights), weights)
        self.distance.update_state(tf.reduce_mean((made - real) ** 2))
        for mine, followed in zip(self.follower.weights, self.judge.layers[0].weights, strict=True):
            mine.assign(0.9 * mine + 0.1 * followed)
        return {"judge": loss, "maker": second, "distance_so_far": self.distance.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        real = keras.utils.unpack_x_y_sample_weight(data)[0]
        return {"judge": tf.reduce_mean(self.judge(real, training=False))}


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.003),
    "adamw": lambda: keras.optimizers.AdamW(0.003, use_ema=True, global_clipnorm=0.5),
}
MODELS = {"convolutions": (convolutions, images), "recurrent": (recurrent, words)}
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "eager": {"run_eagerly": True},
    "several": {"steps_per_execution": 3},
    "aggregated": {},
    "mixed": {},
}
SETTINGS = {
    "aggregated": {"optimizations": {"aggregation_frequency": 2}},
    "mixed": {"optimizations": {"mixed_precision": "O1"}},
}
DATA = {"arrays": of_arrays, "pydataset": of_pydataset, "tf_data": of_tf_data}


class StopAt(keras.callbacks.Callback):
    """Ends the process once an optimizer has had a number of batches, as a kill does."""

    def __init__(self, batches: int, optimizer: Any) -> None:
        super().__init__()
        self._batches, self._optimizer = batches, optimizer

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        aggregated = self._optimizer.gradient_accumulation_steps or 1
        if int(self._optimizer.iterations) * aggregated >= self._batches:
            os._exit(9)


def finish(context: Any, model: Any, history: Any, **more: Any) -> dict[str, Any]:
    """Return what is to be the same: digests of all variables, and the numbers."""
    variables = [*model.variables]
    for optimizer in context._script.optimizers.of_model(model):
        variables += optimizer.variables
    digests = {
        f"{index} {variable.path}": hashlib.sha256(np.asarray(variable.value).tobytes()).hexdigest()[:12]
        for index, variable in enumerate(variables)
    }
    return {"digests": digests, "history": history.history, **more}


def train(folder: Path, model: str, data: str, optimizer: str, mode: str = "plain") -> dict[str, Any]:
    stop_at = os.environ.get("STOP_AT")
    config = {**RUN, **SETTINGS.get(mode, {})}
    with det.keras.init(run_dir=folder / "run", seed=7, config=config, virtual_workers=PARTS) as context:
        if model == "rivals":
            kinds = [context.wrap_optimizer(OPTIMIZERS[kind]()) for kind in (optimizer, "adam")]
            network, arrays = Rivals(*kinds), (images()[0][:, 0, 0, :].repeat(2, -1)[:, :4],)
            network.build((None, 4))
            network.compile()
        else:
            make, load = MODELS[model]
            network, arrays = make(), load()
            network.compile(
                context.wrap_optimizer(OPTIMIZERS[optimizer]()),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
                **MODES[mode],
            )
        inputs, options = DATA[data](context, arrays)
        held_out = context.wrap_data(*(array[:77] for array in arrays))
        if model != "rivals":
            options["validation_data"] = held_out
        else:
            options["validate"] = False
        first = network.first if model == "rivals" else network.optimizer
        callbacks = [StopAt(int(stop_at), first)] if stop_at else []
        history = context.fit(network, *inputs, epochs=EPOCHS, verbose=0, callbacks=callbacks, **options)
        evaluation = {}
        if model != "rivals":
            evaluation = context.evaluate(
                network, *held_out, batch_size=context.distributed.shard_batch_size(20)
            )
        return finish(context, network, history, evaluation=evaluation)


class Follower(keras.Model):
    """A layer is trained, another follows it, and the running loss has another name in the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = keras.layers.Conv2D(8, 3, activation="relu")
        self.head = keras.layers.Dense(10)
        self.follower = keras.layers.Dense(10, trainable=False)
        self.running = keras.metrics.Mean("running")

    @property
    def metrics(self) -> list[Any]:
        return [self.running]

    def build(self, shape: Any) -> None:
        self.conv.build((None, 8, 8, 3))
        self.head.build((None, 288))
        self.follower.build((None, 288))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.head(keras.ops.reshape(self.conv(x), (-1, 288)))

    def _loss(self, data: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(data[1], self(data[0], training=True))

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            losses = self._loss(data)
            loss = tf.reduce_mean(losses)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for mine, followed in zip(self.follower.weights, self.head.weights, strict=True):
            mine.assign(0.9 * mine + 0.1 * followed)
        self.running.update_state(losses)
        return {"loss": self.running.result(), "last": loss}

    def test_step(self, data: Any) -> dict[str, Any]:
        self.running.update_state(self._loss(data))
        return {"loss": self.running.result()}


def compare_with_keras(folder: Path) -> dict[str, Any]:
    """Return how far the weights are from those of plain Keras, and the histories, without anything random."""
    x, y = images(203)
    x_val, y_val = x[:77], y[:77]

    def make() -> keras.Model:
        keras.utils.set_random_seed(3)
        model = Follower()
        model.build((None, 8, 8, 3))
        return model

    class StopInTheLastBatch(keras.callbacks.Callback):
        """Ends training with the last batch of the second epoch, in which a checkpoint was made before."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.epoch == 1 and batch == 203 // GLOBAL_BATCH:
                self.model.stop_training = True

    with det.keras.init(run_dir=folder / "run", seed=7, virtual_workers=PARTS, config=RUN) as context:
        ours, plain = make(), make()
        ours.compile(context.wrap_optimizer(OPTIMIZERS["adamw"]()))
        plain.compile(OPTIMIZERS["adamw"]())
        options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0}
        history = context.fit(
            ours, *context.wrap_data(x, y), batch_size=context.distributed.shard_batch_size(GLOBAL_BATCH),
            validation_data=context.wrap_data(x_val, y_val), callbacks=[StopInTheLastBatch()], **options,
        )  # fmt: skip
        expected = plain.fit(
            x, y, batch_size=GLOBAL_BATCH, validation_data=(x_val, y_val), callbacks=[StopInTheLastBatch()],
            **options,
        )  # fmt: skip
        pairs = zip(ours.get_weights(), plain.get_weights(), strict=True)
        return {
            "distance": max(float(np.abs(one - other).max()) for one, other in pairs),
            "history": history.history,
            "expected": expected.history,
        }


class Branching(keras.Model):
    """Applies gradients in a branch of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.dense(data[0]))
        gradients = tape.gradient(loss, self.trainable_variables)

        def update() -> tf.Tensor:
            self.optimizer.apply(gradients, self.trainable_variables)
            return loss

        return {"loss": tf.cond(loss > 0, update, lambda: loss)}


def refusals(folder: Path) -> dict[str, Any]:
    """Return what virtual workers say to what they cannot share."""
    x, y = np.ones((40, 3), "float32"), np.ones((40, 1), "float32")
    found = {}
    with det.keras.init(run_dir=folder / "run", seed=7, virtual_workers=PARTS) as context:
        dense = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        branching = Branching()
        branching.build((None, 3))
        for model in (dense, branching):
            model.compile(context.wrap_optimizer(keras.optimizers.SGD()), "mse")
        rows = tf.data.Dataset.from_tensor_slices((x, y))
        sparse = rows.batch(8).map(lambda x, y: (tf.sparse.from_dense(x), y))
        tries: dict[str, tuple[keras.Model, Callable[[], Any]]] = {
            "generator": (dense, lambda: ((pair for pair in [(x, y)] * 3),)),
            "per worker": (dense, lambda: context.wrap_data(Batches((x, y)), per_worker_batches=True)),
            "unsharded": (dense, lambda: context.wrap_data(rows, shard=False)),
            "sparse": (dense, lambda: (sparse,)),
            "endless": (dense, lambda: (sparse.repeat(),)),
            "branch": (branching, lambda: context.wrap_data(x, y)),
        }
        for name, (model, make) in tries.items():
            try:
                context.fit(
                    model,
                    *make(),
                    epochs=1,
                    validate=False,
                    steps_per_epoch=2 if name == "endless" else None,
                    verbose=0,
                )
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found


def main(folder: Path, names: list[str]) -> None:
    rank = int(os.environ.get("HOROVOD_RANK", 0))
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        others = {"keras": compare_with_keras, "refusals": refusals}
        found = others[name](folder / name) if name in others else train(folder / name, *name.split("-"))
        (folder / name / f"rank-{rank}.json").write_text(json.dumps(found, default=float))
        keras.backend.clear_session(free_memory=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
