"""Small trainings that run on any number of workers, one after another in the same processes.

    python scenarios.py FOLDER NAME...

Each scenario leaves ``FOLDER/NAME/rank-<r>.json`` with what it returned, or with its error, and the process's number in
``rank-<r>.pid``; the chief leaves the model's variables in ``variables.npz``.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import det_keras as det

GLOBAL_BATCH, EPOCHS = 64, 2
# These draw each kind of fault at least once.
FAULTS = range(int(os.environ["FAULTS"])) if os.environ.get("FAULTS") else (0, 1, 3, 5)
SCENARIOS: dict[str, Callable[[Path], Any]] = {}


def scenario(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Make a function known by its name."""
    SCENARIOS[function.__name__] = function
    return function


def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    return (data.data / 16).astype("float32").reshape(-1, 8, 8, 1), data.target.astype("int64")


def network(dtype: Any = None) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu", dtype=dtype),
            keras.layers.BatchNormalization(trainable=False, dtype=dtype),
            keras.layers.Flatten(dtype=dtype),
            keras.layers.Dense(10, activation="softmax", dtype=dtype),
        ]
    )


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9)


class Batches(keras.utils.PyDataset):
    """Global batches of the digits, or batches of one worker."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._x, self._y = digits()

    def __len__(self) -> int:
        return -(-len(self._x) // self._size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * self._size, (index + 1) * self._size)
        return self._x[rows], self._y[rows]


def keep(folder: Path, context: Any, model: keras.Model) -> None:
    """Have the chief leave the model's variables."""
    if context.distributed.is_chief:
        np.savez(folder / "variables.npz", *[np.asarray(one.value) for one in model.variables])


def train(
    folder: Path,
    model: keras.Model,
    optimizer: Any,
    make_data: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]] | None = None,
    *,
    config: dict[str, Any] | None = None,
    callbacks: Any = (),
    compile_options: dict[str, Any] | None = None,
    epochs: int = EPOCHS,
    seed: int = 7,
    wrap: Callable[[Any, Any], Any] = lambda context, optimizer: context.wrap_optimizer(optimizer),
    only_fit: bool = False,
    infers: bool = False,
) -> dict[str, Any]:
    """Train on the digits, leave the variables and return the history.

    Args:
        folder: of the run and of the variables.
        model: not compiled.
        optimizer: not wrapped.
        make_data: returns what `fit` is given, by position and by name; None for the arrays.
        config: of the run.
        callbacks: of `fit`.
        compile_options: besides the optimizer; replace the loss and the metrics.
        epochs: of `fit`.
        seed: of the run.
        wrap: the optimizer.
        only_fit: leave no variables.
        infers: evaluate and predict as well. It depends on the model, not on the data of the training.
    """
    with det.keras.init(run_dir=folder / "run", seed=seed, config=config) as context:
        x, y = digits()
        options = {
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
            **(compile_options or {}),
        }
        model.compile(optimizer=wrap(context, optimizer), **options)
        x_val, y_val = context.wrap_data(x[:301], y[:301])
        if make_data is None:
            batch_size = context.distributed.shard_batch_size(GLOBAL_BATCH)
            data, more = context.wrap_data(x, y), {"batch_size": batch_size}
        else:
            data, more = make_data(context)
        history = context.fit(
            model, *data, epochs=epochs, validation_data=(x_val, y_val), verbose=0,
            callbacks=list(callbacks), **more,
        )  # fmt: skip
        if only_fit:
            return {"history": history.history}
        result = {"history": history.history}
        if infers:
            result["evaluation"] = context.evaluate(model, x_val, y_val)
            predictions = context.predict(model, x_val, gather=True)
            result["predictions"] = np.round(predictions[::50], 4).tolist()
        keep(folder, context, model)
    return result


@scenario
def arrays_sgd(folder: Path) -> Any:
    return train(folder, network(), sgd(), infers=True)


@scenario
def norms_of_layers(folder: Path) -> Any:
    return train(folder, network(), sgd(), config={"profiling": {"layers": True}})


@scenario
def arrays_adam_clipped(folder: Path) -> Any:
    return train(folder, network(), keras.optimizers.Adam(0.003, clipnorm=0.05))


@scenario
def pydataset(folder: Path) -> Any:
    return train(folder, network(), sgd(), lambda context: ((context.wrap_data(Batches(GLOBAL_BATCH)),), {}))


@scenario
def per_worker_batches(folder: Path) -> Any:
    def data(context: Any) -> Any:
        batches = Batches(context.distributed.shard_batch_size(GLOBAL_BATCH))
        return (context.wrap_data(batches, per_worker_batches=True),), {"shuffle": False}

    return train(folder, network(), sgd(), data)


def shuffled(context: Any, *, known: bool) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices(digits()).shuffle(500, seed=3)
    if not known:
        rows = rows.filter(lambda x, y: True)
    return context.wrap_data(rows).batch(context.distributed.shard_batch_size(GLOBAL_BATCH)).prefetch(2)


@scenario
def tf_data(folder: Path) -> Any:
    return train(folder, network(), sgd(), lambda context: ((shuffled(context, known=True),), {}))


@scenario
def tf_data_in_steps(folder: Path) -> Any:
    """An epoch ends within a pass, and the workers have different numbers of rows in a pass."""

    def data(context: Any) -> Any:
        return (shuffled(context, known=True),), {"steps_per_epoch": 17}

    return train(folder, network(), sgd(), data, epochs=4)


@scenario
def tf_data_without_a_rest(folder: Path) -> Any:
    """One worker has a full batch more than the other."""

    def data(context: Any) -> Any:
        size = context.distributed.shard_batch_size(GLOBAL_BATCH)
        rows = tf.data.Dataset.from_tensor_slices(digits()).take(10 * GLOBAL_BATCH - 1)
        return (context.wrap_data(rows).batch(size, drop_remainder=True),), {}

    return train(folder, network(), sgd(), data)


@scenario
def unknown_length_in_several_steps(folder: Path) -> Any:
    """The pipeline exchanges whether there is more, while the steps exchange gradients."""

    def data(context: Any) -> Any:
        return (shuffled(context, known=False),), {}

    return train(folder, network(), sgd(), data, compile_options={"steps_per_execution": 8})


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.003)


@scenario
def pydataset_adam(folder: Path) -> Any:
    return train(folder, network(), adam(), lambda context: ((context.wrap_data(Batches(GLOBAL_BATCH)),), {}))


@scenario
def tf_data_adam(folder: Path) -> Any:
    return train(folder, network(), adam(), lambda context: ((shuffled(context, known=True),), {}))


@scenario
def tf_data_of_unknown_length(folder: Path) -> Any:
    return train(
        folder, network(), sgd(), lambda context: ((shuffled(context, known=False),), {}), infers=True
    )


@scenario
def several_steps_per_execution(folder: Path) -> Any:
    return train(folder, network(), sgd(), compile_options={"steps_per_execution": 4})


@scenario
def aggregated(folder: Path) -> Any:
    return train(folder, network(), sgd(), config={"optimizations": {"aggregation_frequency": 3}})


@scenario
def compressed(folder: Path) -> Any:
    return train(folder, network(), sgd(), config={"optimizations": {"gradient_compression": True}})


@scenario
def mixed_float16(folder: Path) -> Any:
    return train(
        folder, network("mixed_float16"), keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=256.0)
    )


@scenario
def embedding(folder: Path) -> Any:
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Embedding(17, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        x, y = digits()
        data = context.wrap_data((x.reshape(-1, 64) * 16).astype("int32"), y)
        model.compile(optimizer=context.wrap_optimizer(sgd()), loss="sparse_categorical_crossentropy")
        size = context.distributed.shard_batch_size(GLOBAL_BATCH)
        history = context.fit(model, *data, batch_size=size, epochs=2, validation_data=data, verbose=0)
        keep(folder, context, model)
    return {"history": history.history}


def train_weighted(folder: Path, layer: Any, y: np.ndarray, rate: float, **compile_options: Any) -> Any:
    """Train a layer on 193 digits with sample weights: some workers have no row of the last batch."""
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        x = digits()[0][:193].reshape(193, 64)
        model = keras.Sequential([keras.Input((64,)), layer])
        model.compile(optimizer=context.wrap_optimizer(keras.optimizers.SGD(rate)), **compile_options)
        x, y, weights = context.wrap_data(x, y[:193], np.linspace(0.1, 2.0, 193))
        size = context.distributed.shard_batch_size(GLOBAL_BATCH)
        history = context.fit(
            model, x, y, sample_weight=weights, batch_size=size, epochs=2, validation_data=(x, y, weights), verbose=0
        )  # fmt: skip
        keep(folder, context, model)
    return {"history": {name: np.asarray(values).tolist() for name, values in history.history.items()}}


@scenario
def binary_metrics(folder: Path) -> Any:
    metrics = [
        keras.metrics.AUC(name="auc"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
        keras.metrics.MeanSquaredError(name="mse"),
        keras.metrics.F1Score(threshold=0.5, name="f1"),
        keras.metrics.R2Score(name="r2"),
        "accuracy",
    ]
    layer, y = keras.layers.Dense(1, activation="sigmoid"), (digits()[1] % 2)[:, None].astype("float32")
    return train_weighted(folder, layer, y, 0.1, loss="binary_crossentropy", weighted_metrics=metrics)


def train_reduced(folder: Path, reduction: str, rate: float) -> Any:
    """Train with a penalty, the loss reduced in a way."""
    layer = keras.layers.Dense(10, activation="softmax", kernel_regularizer=keras.regularizers.L2(0.01))
    loss = keras.losses.SparseCategoricalCrossentropy(reduction=reduction)
    return train_weighted(folder, layer, digits()[1], rate, loss=loss)


@scenario
def losses_reduced_in_two_ways(folder: Path) -> Any:
    """Also the losses of single outputs in a validation, whose batches have different sizes."""
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        x, y = digits()
        inputs = keras.Input((8, 8, 1))
        flat = keras.layers.Flatten()(inputs)
        model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(flat) for name in "abc"})
        loss = {
            name: keras.losses.MeanSquaredError(reduction=by) for name, by in (("a", "sum"), ("b", "mean"))
        }
        model.compile(optimizer=context.wrap_optimizer(keras.optimizers.SGD(1e-4)), loss={**loss, "c": "mae"})
        names = dict.fromkeys("abc", y.astype("float32"))
        x_val, y_val = context.wrap_data(x[:37], {name: values[:37] for name, values in names.items()})
        x, y = context.wrap_data(x, names)
        size = context.distributed.shard_batch_size(GLOBAL_BATCH)
        history = context.fit(
            model, x, y, batch_size=size, epochs=2, validation_data=(x_val, y_val),
            validation_batch_size=context.distributed.shard_batch_size(20), verbose=0,
        )  # fmt: skip
        evaluation = context.evaluate(
            model, x_val, y_val, batch_size=context.distributed.shard_batch_size(20)
        )
        keep(folder, context, model)
    return {"history": history.history, "evaluation": evaluation}


def sentences() -> tuple[np.ndarray, np.ndarray]:
    """Return rows of words, the later the longer, so that workers have different numbers of words."""
    words = (digits()[0][:321].reshape(321, 64)[:, 8:20] * 16).astype("int32") + 1
    lengths = 1 + np.arange(321) * 12 // 321
    words[np.arange(12) >= lengths[:, None]] = 0
    return words, (words * 7 % 18).astype("int32")


def train_masked(
    folder: Path, layers: list[Any], y: np.ndarray, *, by: str = "mean", weigh: bool = False
) -> Any:
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        words = sentences()[0]
        embedding = keras.layers.Embedding(18, 6, mask_zero=True)
        model = keras.Sequential([keras.Input((12,), dtype="int32"), embedding, *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=by)
        model.compile(optimizer=context.wrap_optimizer(adam()), loss=loss, weighted_metrics=["accuracy"])
        given = (words, y, np.linspace(0.1, 2.0, words.size).reshape(words.shape)) if weigh else (words, y)
        data = context.wrap_data(*given)
        size = context.distributed.shard_batch_size(GLOBAL_BATCH)
        rows = dict(zip(("x", "y", "sample_weight"), data, strict=False))
        history = context.fit(
            model, **rows, batch_size=size, epochs=2, shuffle=False, validation_data=data, verbose=0
        )  # fmt: skip
        keep(folder, context, model)
    return {"history": history.history}


@scenario
def mask_that_a_layer_consumes(folder: Path) -> Any:
    return train_masked(folder, [keras.layers.LSTM(4), keras.layers.Dense(10)], digits()[1][:321])


@scenario
def mask_in_the_loss(folder: Path) -> Any:
    return train_masked(
        folder, [keras.layers.LSTM(4, return_sequences=True), keras.layers.Dense(18)], sentences()[1]
    )


@scenario
def mask_and_weights_in_the_loss(folder: Path) -> Any:
    layers = [keras.layers.GRU(4, return_sequences=True), keras.layers.Dense(18)]
    return train_masked(folder, layers, sentences()[1], by="mean_with_sample_weight", weigh=True)


@scenario
def loss_that_is_a_sum(folder: Path) -> Any:
    return train_reduced(folder, "sum", 0.005)


@scenario
def loss_that_is_a_mean_by_weights(folder: Path) -> Any:
    return train_reduced(folder, "mean_with_sample_weight", 0.2)


class TwoOptimizers(keras.Model):
    """Trains its two layers with an optimizer each, in a train step of its own, which logs a metric by another name."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__()
        self.flat = keras.layers.Flatten()
        self.hidden = keras.layers.Dense(8, activation="relu")
        self.out = keras.layers.Dense(10, activation="softmax")
        self.pair = {"first": first, "second": second}
        self.total = keras.metrics.Mean("total")

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(self.flat(x)))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            made = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=made)
        self.total.update_state(keras.losses.sparse_categorical_crossentropy(y, made))
        count = len(self.hidden.trainable_variables)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.pair["first"].apply(gradients[:count], self.hidden.trainable_variables)
        self.pair["second"].apply(gradients[count:], self.out.trainable_variables)
        return {"loss": loss, "running": self.total.result()}


@scenario
def two_optimizers(folder: Path) -> Any:
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        x, y = digits()
        model = TwoOptimizers(
            context.wrap_optimizer(keras.optimizers.Adam(0.01)), context.wrap_optimizer(sgd())
        )
        model.compile(loss="sparse_categorical_crossentropy")
        data = context.wrap_data(x, y)
        size = context.distributed.shard_batch_size(GLOBAL_BATCH)
        history = context.fit(model, *data, batch_size=size, epochs=2, validation_data=data, verbose=0)
        keep(folder, context, model)
    return {"history": history.history}


@scenario
def objects(folder: Path) -> Any:
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        workers = context.distributed
        return {
            "rank": workers.get_rank(),
            "gather": workers.gather(f"of {workers.rank}"),
            "allgather": workers.allgather(workers.rank**2),
            "broadcast": workers.broadcast({"from": workers.rank}),
            "local": workers.allgather_local(workers.local_rank),
        }


@scenario
def predictions(folder: Path) -> Any:
    """Return for each kind of data whether its gathered predictions are those of the whole."""
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        x, model = digits()[0], network()
        rows = tf.data.Dataset.from_tensor_slices(x[:101])
        gathered = {
            "arrays": context.predict(model, context.wrap_data(x[:101]), gather=True),
            "PyDataset": context.predict(model, context.wrap_data(Batches(400)), gather=True),
            "tf.data": context.predict(model, context.wrap_data(rows).batch(8), gather=True),
        }
        whole = model.predict(x, verbose=0)
        found = {
            name: len(one) in (101, len(x)) and bool(np.allclose(one, whole[: len(one)], atol=1e-5))
            for name, one in gathered.items()
        }
        for name, data, gather in (
            ("not dealt out", context.wrap_data(rows, shard=False).batch(8), True),
            ("uneven", context.wrap_data(rows).take(20 - 15 * context.distributed.rank).batch(8), True),
            ("too few batches", context.wrap_data(Batches(1797)), False),
        ):  # fmt: skip
            try:
                found[name] = len(context.predict(model, data, gather=gather))
            except ValueError as error:
                found[name] = str(error)
        return found


@scenario
def evaluations(folder: Path) -> Any:
    """Return what becomes of arguments of `evaluate` that make no sense, and of data without a batch."""
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        x, y = context.wrap_data(*digits())
        model = network()
        model.compile(optimizer=context.wrap_optimizer(sgd()), loss="sparse_categorical_crossentropy")
        rows = tf.data.Dataset.from_tensor_slices(digits()).batch(900).filter(lambda *batch: False)
        found = {}
        for name, data, options in (
            ("one batch", (x, y), {"batch_size": np.int64(5), "steps": np.int64(1)}),
            ("misspelt", (x, y), {"stepz": 1}),
            ("no batch size", (x, y), {"batch_size": 0}),
            ("no step", (x, y), {"steps": -1}),
            ("empty", (context.wrap_data(rows),), {}),
        ):  # fmt: skip
            try:
                found[name] = context.evaluate(model, *data, **options)
            except (TypeError, ValueError) as error:
                found[name] = str(error)
        return found


@scenario
def plain_fit(folder: Path) -> Any:
    """Return what is logged of `context.fit`, and then of `model.fit` twice, with a wrapped optimizer."""
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        heard: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("det_keras").addHandler(handler)
        data = context.wrap_data(*digits())
        said = []
        for how in ("context.fit", "model.fit", "model.fit"):
            model = network()
            model.compile(optimizer=context.wrap_optimizer(sgd()), loss="sparse_categorical_crossentropy")
            if how == "context.fit":
                context.fit(model, *data, batch_size=400, validation_data=data, verbose=0)
            else:
                share = slice(context.distributed.rank, 1600, context.distributed.size)
                model.fit(*(part[share] for part in digits()), batch_size=400, verbose=0)
            said.append([*heard])
            heard.clear()
        logging.getLogger("det_keras").removeHandler(handler)
        return said


# What has to fail, with its own message.


@scenario
def unreduced_loss(folder: Path) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(reduction=None)
    return train(folder, network(), sgd(), compile_options={"loss": loss})


@scenario
def unwrapped_optimizer(folder: Path) -> Any:
    return train(folder, network(), sgd(), wrap=lambda context, optimizer: optimizer)


@scenario
def unwrapped_data(folder: Path) -> Any:
    return train(folder, network(), sgd(), lambda context: (digits(), {}))


@scenario
def data_changed_after_wrapping(folder: Path) -> Any:
    def data(context: Any) -> Any:
        x, y = context.wrap_data(*digits())
        return (x * 2, y), {}

    return train(folder, network(), sgd(), data)


@scenario
def fewer_samples_than_workers(folder: Path) -> Any:
    return train(
        folder, network(), sgd(), lambda context: (context.wrap_data(*(a[:1] for a in digits())), {})
    )


@scenario
def indivisible_batch_size(folder: Path) -> Any:
    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        return context.distributed.shard_batch_size(63)


@scenario
def optimizer_of_horovods_own(folder: Path) -> Any:
    import horovod.tensorflow.keras as hvd

    return train(
        folder, network(), sgd(), wrap=lambda context, optimizer: hvd.DistributedOptimizer(optimizer)
    )


@scenario
def synchronized_batch_normalization(folder: Path) -> Any:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    return train(folder, model, sgd())


class Smallest(keras.metrics.Metric):
    """A minimum, which cannot be summed."""

    def __init__(self) -> None:
        super().__init__(name="smallest")
        self.value = self.add_weight(name="value", initializer=keras.initializers.Constant(np.inf))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(tf.minimum(self.value.value, tf.reduce_min(y_pred)))

    def reset_state(self) -> None:
        self.value.assign(np.inf)

    def result(self) -> Any:
        return self.value


@scenario
def metric_that_is_no_sum(folder: Path) -> Any:
    return train(folder, network(), sgd(), compile_options={"metrics": [Smallest()]})


class At(keras.callbacks.Callback):
    """Does something on one rank before a batch."""

    def __init__(self, rank: int | None, batch: int, act: Callable[[keras.Model], None]) -> None:
        super().__init__()
        self._rank, self._left, self._act = rank, batch, act

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == -1 and self._rank in (None, int(os.environ.get("HOROVOD_RANK", 0))):
            self._act(self.model)


def flip_a_bit(model: keras.Model) -> None:
    variable = model.trainable_variables[2]
    value = np.array(variable.value)
    value.reshape(-1).view(np.uint32)[5] ^= 1
    variable.assign(value)


CHECKED_OFTEN = {"optimizations": {"divergence_check_period": 5}}


@scenario
def flipped_bit(folder: Path) -> Any:
    return train(folder, network(), sgd(), config=CHECKED_OFTEN, callbacks=[At(1, 7, flip_a_bit)])


@scenario
def skipped_exchange(folder: Path) -> Any:
    def forget(context: Any, optimizer: Any) -> Any:
        context.wrap_optimizer(optimizer)
        exchange = context._script.optimizers._exchange
        exchange.average = lambda gradients, name: gradients
        return optimizer

    return train(folder, network(), sgd(), config=CHECKED_OFTEN, wrap=forget)


@scenario
def unsynchronised_variable(folder: Path) -> Any:
    def scale(model: keras.Model) -> None:
        model.trainable_variables[0].assign(model.trainable_variables[0] * 1.001)

    return train(folder, network(), sgd(), config=CHECKED_OFTEN, callbacks=[At(1, 11, scale)])


def skip_exchange_of(index: int) -> Callable[[Any, Any], Any]:
    """Return a way to wrap an optimizer so that one variable's gradients stay where they are."""

    def wrap(context: Any, optimizer: Any) -> Any:
        context.wrap_optimizer(optimizer)
        exchange = context._script.optimizers._exchange
        average = exchange.average

        def skipping(gradients: list[Any], name: str) -> list[Any]:
            averaged = average(gradients, name)
            return [*averaged[:index], gradients[index], *averaged[index + 1 :]]

        exchange.average = skipping
        return optimizer

    return wrap


def spoil(model: keras.Model, *, index: int, place: int, bit: int | None) -> None:
    """Flip a bit of one weight, or add a little to it."""
    value = np.array(model.trainable_variables[index].value)
    flat = value.reshape(-1)
    if bit is None:
        flat[place % flat.size] += 0.01
    else:
        flat.view(np.uint32)[place % flat.size] ^= np.uint32(1 << bit)
    model.trainable_variables[index].assign(value)


@scenario
def seeded_faults(folder: Path) -> Any:
    """Return for each fault which variable was hit, before which batch, and what was said of it; see `faults`."""
    return [seeded_fault(folder / str(seed), seed) for seed in FAULTS]


def seeded_fault(folder: Path, seed: int) -> dict[str, Any]:
    """Train with one fault."""
    rng = np.random.RandomState(seed)
    kind, batch, index, rank = (int(rng.randint(limit)) for limit in (4, 21, 4, 2))
    bit, place = int(rng.randint(32)), int(rng.randint(2**31))

    def damage(model: keras.Model) -> None:
        spoil(model, index=index, place=place, bit=bit if kind == 0 else None)

    def misplaced(context: Any) -> Any:
        order = np.arange(len(digits()[1]))
        if context.distributed.rank == rank:
            rng.shuffle(order)
        return context.wrap_data(*(part[order] for part in digits())), {}

    fault: dict[str, Any] = {"callbacks": [At(rank, batch + 1, damage)]}
    if kind == 2:
        fault, batch = {"wrap": skip_exchange_of(index)}, -1
    elif kind == 3:
        fault = {"make_data": misplaced}
    keras.backend.clear_session(free_memory=False)
    model = network()
    path = f"`{model.trainable_variables[index].path}`"
    said = None
    try:
        train(folder, model, sgd(), config=CHECKED_OFTEN, epochs=1, only_fit=True, **fault)
    except (det.errors.DivergenceError, ValueError) as error:
        said = str(error)
    weights = b"".join(np.asarray(one.value).tobytes() for one in model.trainable_variables)
    return {"kind": kind, "batch": batch + 1, "variable": path, "said": said, "weights": zlib.crc32(weights)}


@scenario
def clean_runs(folder: Path) -> Any:
    """Return what was said of trainings without a fault, whose ranks ask for seeds of their own."""
    said = []
    for seed in FAULTS if "FAULTS" in os.environ else FAULTS[:2]:
        keras.backend.clear_session(free_memory=False)
        own_seed = 2 * seed + int(os.environ.get("HOROVOD_RANK", 0))
        keras.utils.set_random_seed(own_seed)
        try:
            train(folder / str(seed), random_network(), sgd(), config=CHECKED_OFTEN, epochs=1, seed=own_seed)
        except (det.errors.DivergenceError, ValueError) as error:
            said.append(f"seed {seed}: {error}")
    return said


@scenario
def wrapper_of_horovods_own_on_keras_3(folder: Path) -> Any:
    """Return the weights of each rank after training with Horovod's own wrapper, without this package's `fit`."""
    import horovod.tensorflow.keras as hvd

    with det.keras.init(run_dir=folder / "run", seed=7) as context:
        x, y = digits()
        model = network()
        model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="sparse_categorical_crossentropy")
        share = slice(context.distributed.rank, None, context.distributed.size)
        model.fit(x[share], y[share], batch_size=32, epochs=1, verbose=0, shuffle=False)
        return context.distributed.allgather(float(np.asarray(model.trainable_variables[0].value).sum()))


@scenario
def other_data_on_one_rank(folder: Path) -> Any:
    def data(context: Any) -> Any:
        x, y = digits()
        order = np.random.RandomState(context.distributed.rank).permutation(len(x))
        return context.wrap_data(x[order], y[order]), {}

    return train(folder, network(), sgd(), data)


@scenario
def other_model_on_one_rank(folder: Path) -> Any:
    rank = int(os.environ.get("HOROVOD_RANK", 0))
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10 + rank, activation="softmax")]
    )
    return train(folder, model, sgd())


def stop_training(model: keras.Model) -> None:
    model.stop_training = True


@scenario
def stopped_by_one_rank(folder: Path) -> Any:
    """Return how many batches each rank trained after rank 1 wanted to stop in the middle of the first epoch."""
    batches: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch))
    train(folder, network(), sgd(), callbacks=[At(1, 3, stop_training), count])
    return len(batches)


class InterruptionError(Exception):
    """Ends a training in the middle, on all workers."""


def interrupt(_: keras.Model) -> None:
    raise InterruptionError


def random_network() -> keras.Model:
    """Return a model with everything that differs between workers: masks and moving statistics."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


EVERY_FIFTH = {"min_checkpoint_period": {"batches": 5}}


@scenario
def random_undisturbed(folder: Path) -> Any:
    return train(folder, random_network(), sgd(), config=EVERY_FIFTH, epochs=3)


@scenario
def random_resumed(folder: Path) -> Any:
    for batch in (12, 9, 30):
        try:
            train(
                folder,
                random_network(),
                sgd(),
                config=EVERY_FIFTH,
                epochs=3,
                callbacks=[At(None, batch, interrupt)],
            )
        except InterruptionError:
            keras.backend.clear_session(free_memory=False)
    return train(folder, random_network(), sgd(), config=EVERY_FIFTH, epochs=3)


@scenario
def tf_data_undisturbed(folder: Path) -> Any:
    def data(context: Any) -> Any:
        return (shuffled(context, known=True),), {}

    return train(folder, random_network(), sgd(), data, config=EVERY_FIFTH)


@scenario
def tf_data_resumed(folder: Path) -> Any:
    def data(context: Any) -> Any:
        return (shuffled(context, known=True),), {}

    for batch in (12, 14):
        try:
            train(
                folder,
                random_network(),
                sgd(),
                data,
                config=EVERY_FIFTH,
                callbacks=[At(None, batch, interrupt)],
            )
        except InterruptionError:
            keras.backend.clear_session(free_memory=False)
    return train(folder, random_network(), sgd(), data, config=EVERY_FIFTH)


def continued(folder: Path, batch: int | None) -> Any:
    """Train until a batch, from wherever the run stands: for workers whose number changes in between."""
    callbacks = [] if batch is None else [At(None, batch, interrupt)]
    if os.environ.get("RELAY_SLOWLY"):
        callbacks.append(
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.05))
        )
    try:
        return train(folder, network(), sgd(), config=EVERY_FIFTH, epochs=3, callbacks=callbacks)
    except InterruptionError:
        return "interrupted"


@scenario
def relay(folder: Path) -> Any:
    batch = os.environ.get("RELAY_BATCHES")
    return continued(folder, int(batch) if batch else None)


def main(folder: Path, names: list[str]) -> None:
    # TensorFlow's objects live as long as the process: the garbage collector need not look through them.
    gc.freeze()
    rank = int(os.environ.get("HOROVOD_RANK", 0))
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"rank-{rank}.pid").write_text(str(os.getpid()))
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        try:
            result = {"result": SCENARIOS[name](folder / name)}
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        (folder / name / f"rank-{rank}.json").write_text(json.dumps(result, default=float))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
