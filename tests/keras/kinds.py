"""Small trainings of every kind of input and model, each a pure function of its context.

`train` runs one of them alone in a run directory; the tests interrupt it and compare digests.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import det_keras as det

SAMPLES, FEATURES, BATCH, EPOCHS = 88, 6, 8, 3
STEPS = SAMPLES // BATCH


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(5)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
    return x, (x[:, 0] + x[:, 1] > 0).astype("int64")


def network(**options: Any) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(2),
        ]
    )
    compile_options = {"loss": _loss(), "weighted_metrics": ["accuracy"], **options}
    model.compile(**compile_options)
    return model


def _loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _fit(context: Any, model: Any, *data: Any, **options: Any) -> Any:
    x, y = arrays()
    options = {"validation_data": (x[:20], y[:20]), "epochs": EPOCHS, "verbose": 0, **options}
    return context.fit(model, *data, **options)


def fit_arrays(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    x, y = context.wrap_data(*arrays())
    model = network(optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.01)))
    return model, [_fit(context, model, x, y, batch_size=BATCH, callbacks=callbacks)]


def fit_dict_with_sample_weights(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    x, y = arrays()
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((3,), name="b")}
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([inputs["a"], inputs["b"]]))
    model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=_loss(), weighted_metrics=["accuracy"])
    data = {"a": x[:, :3], "b": x[:, 3:]}
    weights = np.linspace(0.5, 2.0, SAMPLES)
    small = {"a": x[:20, :3], "b": x[:20, 3:]}
    history = _fit(
        context, model, data, y, sample_weight=weights, batch_size=BATCH, callbacks=callbacks,
        validation_data=(small, y[:20], weights[:20]),
    )  # fmt: skip
    return model, [history]


class Batches(keras.utils.PyDataset):
    """Batches that depend on their number and on the epoch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.x, self.y = arrays()
        self.epoch = 0

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows] + 0.01 * self.epoch, self.y[rows]

    def on_epoch_end(self) -> None:
        self.epoch += 1


def fit_pydataset(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    model = network(optimizer=context.wrap_optimizer(keras.optimizers.SGD(0.05, momentum=0.9)))
    data = context.wrap_data(Batches(workers=2, max_queue_size=4))
    return model, [_fit(context, model, data, callbacks=callbacks)]


def fit_pydataset_processes(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    model = network(optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.01)))
    data = context.wrap_data(Batches(workers=2, use_multiprocessing=True, max_queue_size=3))
    return model, [_fit(context, model, data, callbacks=callbacks)]


def fit_tf_data(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    dataset = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(30).batch(BATCH).prefetch(2)
    model = network(optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.01)))
    return model, [_fit(context, model, context.wrap_data(dataset), callbacks=callbacks)]


def fit_generator_dataset(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    x, y = arrays()
    signature = (tf.TensorSpec((FEATURES,), tf.float32), tf.TensorSpec((), tf.int64))
    rows = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=signature)
    model = network(optimizer="adam")
    return model, [_fit(context, model, rows.shuffle(30).batch(BATCH), callbacks=callbacks)]


def fit_steps_per_execution(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    x, y = arrays()
    model = network(optimizer=keras.optimizers.Adam(0.01), steps_per_execution=4)
    return model, [_fit(context, model, x, y, batch_size=BATCH, callbacks=callbacks)]


def fit_class_weights(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    x, y = arrays()
    model = network(optimizer=keras.optimizers.Adam(0.05))
    own = [
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=0.5),
        keras.callbacks.EarlyStopping(
            monitor="val_loss", patience=2, min_delta=0.5, restore_best_weights=True
        ),
    ]
    history = _fit(
        context,
        model,
        x,
        y,
        batch_size=BATCH,
        epochs=6,
        class_weight={0: 1.0, 1: 3.0},
        callbacks=own + callbacks,
    )
    return model, [history]


class TwoOptimizers(keras.Model):
    """Trains its two halves with an optimizer each."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="relu")
        self.out = keras.layers.Dense(2)
        self.pair = {"first": first, "second": second}

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predictions)
        count = len(self.hidden.trainable_variables)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.pair["first"].apply(gradients[:count], self.hidden.trainable_variables)
        self.pair["second"].apply(gradients[count:], self.out.trainable_variables)
        return {"loss": loss}


def fit_two_optimizers(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    x, y = arrays()
    first = context.wrap_optimizer(keras.optimizers.Adam(0.01))
    second = context.wrap_optimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    model = TwoOptimizers(first, second)
    model.compile(loss=_loss())
    return model, [_fit(context, model, x, y, batch_size=BATCH, callbacks=callbacks)]


def fit_mixed_float16(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    x, y = arrays()
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = network(optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.01)))
        return model, [_fit(context, model, x, y, batch_size=BATCH, callbacks=callbacks)]
    finally:
        keras.config.set_dtype_policy(previous)


def fit_ema(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    x, y = arrays()
    model = network(
        optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9))
    )
    return model, [_fit(context, model, x, y, batch_size=BATCH, callbacks=callbacks)]


def fit_two_phases(context: Any, callbacks: list[Any]) -> tuple[Any, list[Any]]:
    x, y = arrays()
    model = network(optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.01)))
    model.layers[0].trainable = False
    model.compile(optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.01)), loss=_loss())
    first = _fit(context, model, x, y, batch_size=BATCH, epochs=2, callbacks=callbacks)
    model.layers[0].trainable = True
    model.compile(optimizer=context.wrap_optimizer(keras.optimizers.SGD(0.02)), loss=_loss())
    return model, [first, _fit(context, model, x, y, batch_size=BATCH, epochs=2, callbacks=callbacks)]


KINDS: dict[str, Callable[[Any, list[Any]], tuple[Any, list[Any]]]] = {
    name.removeprefix("fit_"): function
    for name, function in sorted(globals().items())
    if name.startswith("fit_")
}


def train(kind: str, run_dir: Path, *callbacks: Any, **config: Any) -> str:
    """Run a kind in `run_dir` and return the digest of all variables and histories."""
    keras.backend.clear_session(free_memory=False)
    with det.keras.init(config=config or None, run_dir=run_dir, seed=11) as context:
        model, histories = KINDS[kind](context, list(callbacks))
        return digest(model, histories)


def digest(model: Any, histories: list[Any]) -> str:
    """Return the SHA-256 over all final variables and the whole history."""
    content = hashlib.sha256()
    optimizers = [model.optimizer, *getattr(model, "pair", {}).values()]
    variables = [*model.variables, *(v for optimizer in optimizers if optimizer for v in optimizer.variables)]
    for variable in variables:
        content.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
    for history in histories:
        content.update(json.dumps([history.epoch, history.history], sort_keys=True, default=float).encode())
    return content.hexdigest()


class Interrupted(BaseException):
    """Ends a training in the middle."""


class InterruptAt(keras.callbacks.Callback):
    """Raises once a number of batches was trained, counted over all phases of this process, not of the training."""

    def get_state(self) -> None: ...

    def load_state(self, state: None) -> None: ...

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left < 0:
            raise Interrupted
