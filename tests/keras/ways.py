"""Ways of feeding and calling `fit`: every form of input, model and argument that Keras users write.

A way is a function of a *trainer*, which has `fit`, `evaluate` and `predict` with Keras's arguments, the model first:
plain Keras (`PlainKeras`) or a context of det_keras. It returns the model and the results to compare. The differential
tests run each way with both; the kill tests interrupt and resume it.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pandas as pd
import scipy.sparse
import tensorflow as tf

ROWS, FEATURES, BATCH, EPOCHS = 44, 6, 8, 3
WAYS: dict[str, Callable[[Any], tuple[Any, ...]]] = {}

#: Ways whose data, argument or optimizer is another one than in a way beside it, and reaches Keras by the same path:
#: forms of arrays with targets beside those without (or the other way round), types and layouts of arrays, pipelines of
#: steps that other pipelines have too, and optimizers, metrics and callbacks that need no state of a kind of its own.
ALIKE = frozenset(
    {
        *(
            f"{form}_with_targets"
            for form in ("float64", "float16", "int32", "uint8", "bool", "one_dimension")
        ),
        *(f"{form}_with_targets" for form in ("images", "tensor", "variable_order", "strided", "scipy_coo")),
        *(
            f"{form}_with_targets"
            for form in ("integers_of_one_dimension", "integer_series", "categorical_codes")
        ),
        *(
            f"compile_{name}"
            for name in ("rmsprop", "adamw", "lion", "clipvalue", "global_clipnorm", "by_name")
        ),
        *("argument_batch_size_of_all", "argument_batch_size_that_divides", "items_dicts", "items_one_tuple"),
        *("dataset_repeat_with_steps", "dataset_steps_that_divide", "dataset_of_one_tuple"),
        *(f"{form}_alone" for form in ("float16", "int32", "bool", "variable_order", "scipy_coo")),
        *(f"{form}_alone" for form in ("integers_of_one_dimension", "integer_series", "images")),
        *(f"{form}_alone" for form in ("ragged", "sparse_tensor", "scipy_csr", "strings", "frame", "series")),
        *("structure_dict_alone", "structure_list_alone", "outputs_with_loss_weights"),
        *("argument_no_batch_size", "argument_validation_freq", "argument_validation_split_of_frames"),
        *("argument_steps_that_divide", "argument_one_epoch", "step_without_call_from_dataset"),
        *(
            f"compile_{name}"
            for name in ("sgd_momentum", "clipnorm", "weight_decay", "ema_at_the_end", "auto_scale_loss")
        ),
        *("compile_metrics_objects", "callback_terminate_on_nan", "callback_lambda"),
        *("dataset_drop_remainder", "dataset_shuffle_with_seed", "dataset_shuffle_before_repeat"),
        *("dataset_cache_shuffle_repeat", "dataset_layers_in_map", "dataset_counter", "dataset_class_weight"),
        *("dataset_unbatch", "dataset_windows", "dataset_of_ragged_rows", "dataset_of_text"),
        *("items_lists", "items_array_alone", "items_float64", "items_class_weight"),
        "fits_over_one_cached_pipeline",
    }
)


def outcome(results: tuple[Any, ...]) -> list[Any]:
    """Return results as plain values that are equal only if they are the same to the last bit."""
    return [_plain(result) for result in results]


def _plain(result: Any) -> Any:
    if isinstance(result, keras.Model):
        optimizers = [one for one in vars(result).values() if isinstance(one, keras.optimizers.Optimizer)]
        variables = [*result.variables, *result.metrics_variables]
        variables += [
            variable for one in [result.optimizer, *optimizers] if one for variable in one.variables
        ]
        values = [keras.ops.convert_to_numpy(variable) for variable in variables]
        return [(value.dtype.name, value.shape, value.tobytes().hex()) for value in values]
    if isinstance(result, keras.callbacks.History):
        return result.epoch, result.history, result.params
    if isinstance(result, np.ndarray):
        return result.dtype.name, result.shape, result.tobytes().hex()
    return result


class PlainKeras:
    """The trainer that has nothing of det_keras: the expected value of every comparison."""

    def fit(self, model: Any, *args: Any, validate: bool = True, **options: Any) -> Any:
        return model.fit(*args, **options)

    def evaluate(self, model: Any, *args: Any, **options: Any) -> Any:
        return model.evaluate(*args, return_dict=True, **options)

    def predict(self, model: Any, *args: Any, **options: Any) -> Any:
        return model.predict(*args, **options)


def way(function: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    """Add a function to the catalogue under its own name."""
    assert function.__name__ not in WAYS
    WAYS[function.__name__] = function
    return function


def arrays(seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return x: float32, (44, 6), and y: int64, (44,), 0 or 1."""
    rng = np.random.RandomState(seed)
    x = rng.normal(size=(ROWS, FEATURES)).astype("float32")
    return x, (x[:, 0] + x[:, 1] > 0).astype("int64")


def dense(outputs: int = 2, *, inputs: int = FEATURES, **options: Any) -> Any:
    """Return a compiled network with state of every usual kind: statistics, seeds, moments, metrics."""
    model = keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(outputs),
        ]
    )
    compile_options: dict[str, Any] = {
        "optimizer": keras.optimizers.SGD(0.05, momentum=0.9),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "weighted_metrics": ["accuracy"],
    }
    model.compile(**{**compile_options, **options})
    return model


def light() -> Any:
    """Return a compiled model that is traced fast, for ways whose data is what matters."""
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss=loss)
    return model


def regression(**options: Any) -> Any:
    """Return a compiled network with one output and a squared loss."""
    return dense(1, loss="mse", weighted_metrics=["mae"], **options)


class Seen(keras.Model):
    """A model of one's own step that learns to copy: what its steps are given decides what it learns.

    Args:
        look: makes one tensor (batch, features) of whatever the step is given.
        features: of that tensor.
    """

    def __init__(self, look: Callable[[Any], Any], features: int = FEATURES) -> None:
        super().__init__()
        self.look = lambda data: tf.ensure_shape(tf.cast(look(data), tf.float32), [None, features])
        self.look_at_inputs = self.look
        self.inner = keras.layers.Dense(features)
        self.mean = keras.metrics.Mean(name="loss")
        self.forms: list[str] = []

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def train_step(self, data: Any) -> dict[str, Any]:
        self.forms.append("train " + form_of(data))
        x = self.look(data)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.inner(x) - x))
        variables = self.inner.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}

    def call(self, x: Any) -> Any:
        self.forms.append("predict " + form_of(x))
        return self.inner(self.look_at_inputs(x))

    def test_step(self, data: Any) -> dict[str, Any]:
        self.forms.append("test " + form_of(data))
        x = self.look(data)
        self.mean.update_state(tf.reduce_mean(tf.abs(self.inner(x) - x)))
        return {"loss": self.mean.result()}


def form_of(data: Any) -> str:
    """Return the structure, dtypes and shapes of what a step is given."""
    if isinstance(data, dict):
        return "{" + ", ".join(f"{name}: {form_of(item)}" for name, item in data.items()) + "}"
    if isinstance(data, list | tuple):
        return type(data).__name__ + "(" + ", ".join(map(form_of, data)) + ")"
    if data is None:
        return "None"
    return f"{type(data).__name__ if not tf.is_tensor(data) else 'tensor'} {data.dtype} {data.shape}"


def copying(look: Callable[[Any], Any], features: int = FEATURES, **options: Any) -> Any:
    """Return a compiled `Seen`."""
    model = Seen(look, features)
    model.compile(optimizer=keras.optimizers.Adam(0.01), **options)
    return model


def fit(trainer: Any, model: Any, *data: Any, **options: Any) -> Any:
    """Train quietly for some epochs in the order of the data."""
    return trainer.fit(model, *data, **{"epochs": EPOCHS, "verbose": 0, "shuffle": False, **options})


def fit_arrays(trainer: Any, model: Any, x: Any, y: Any = None, **options: Any) -> tuple[Any, ...]:
    """Train on arrays and validate on the same."""
    held_out = (x,) if y is None else (x, y)
    options = {"batch_size": BATCH, "validation_data": held_out if y is not None else x, **options}
    return model, fit(trainer, model, x, y, **options)


# Forms of arrays.


def _form(name: str, make: Callable[[], Any], look: Callable[[Any], Any], features: int) -> None:
    """Add the ways `name`_alone and `name`_with_targets for one form of inputs."""

    def alone(trainer: Any) -> tuple[Any, ...]:
        model, x = copying(look, features), make()
        return model, fit(trainer, model, x, batch_size=BATCH, validate=False), model.forms

    def with_targets(trainer: Any) -> tuple[Any, ...]:
        model, x, y = copying(lambda data: look(data[0]), features), make(), arrays()[1]
        model.look_at_inputs = copying(look, features).look
        history = fit(trainer, model, x, y, batch_size=BATCH, validation_data=(x, y))
        metrics = trainer.evaluate(model, x, y, batch_size=BATCH, verbose=0)
        return model, history, metrics, trainer.predict(model, x, batch_size=BATCH, verbose=0), model.forms

    for kind, function in (("alone", alone), ("with_targets", with_targets)):
        function.__name__ = f"{name}_{kind}"
        way(function)


def _flat(part: Any) -> Any:
    if isinstance(part, tf.SparseTensor):
        part = tf.sparse.to_dense(part)
    if isinstance(part, tf.RaggedTensor):
        part = part.to_tensor(shape=[None, 4])
    if part.dtype == tf.string:
        part = tf.strings.length(part)
    return tf.reshape(tf.cast(part, tf.float32), [tf.shape(part)[0], -1])


def _ragged() -> tf.RaggedTensor:
    lengths = [1 + row % 4 for row in range(ROWS)]
    return tf.RaggedTensor.from_row_lengths(np.arange(sum(lengths), dtype="float32") / 100, lengths)


def _frame() -> pd.DataFrame:
    return pd.DataFrame(arrays()[0], columns=[f"c{number}" for number in range(FEATURES)])


def _sparse() -> Any:
    x = arrays()[0]
    return scipy.sparse.csr_matrix(np.where(x > 0.5, x, 0))


FORMS: dict[str, tuple[Callable[[], Any], int]] = {
    "float32": (lambda: arrays()[0], FEATURES),
    "float64": (lambda: arrays()[0].astype("float64"), FEATURES),
    "float16": (lambda: arrays()[0].astype("float16"), FEATURES),
    "int32": (lambda: (arrays()[0] * 10).astype("int32"), FEATURES),
    "uint8": (lambda: (arrays()[0] ** 2).astype("uint8"), FEATURES),
    "bool": (lambda: arrays()[0] > 0, FEATURES),
    "one_dimension": (lambda: arrays()[0][:, 0], 1),
    "integers_of_one_dimension": (lambda: np.arange(ROWS), 1),
    "images": (lambda: arrays()[0].reshape(ROWS, 2, 3, 1), FEATURES),
    "tensor": (lambda: tf.constant(arrays()[0]), FEATURES),
    "variable_order": (lambda: np.asfortranarray(arrays()[0]), FEATURES),
    "strided": (lambda: np.repeat(arrays()[0], 2, axis=0)[::2], FEATURES),
    "ragged": (_ragged, 4),
    "sparse_tensor": (lambda: tf.sparse.from_dense(_sparse().toarray()), FEATURES),
    "scipy_csr": (_sparse, FEATURES),
    "scipy_coo": (lambda: _sparse().tocoo(), FEATURES),
    "strings": (lambda: np.array(["a" * (1 + row % 5) for row in range(ROWS)], dtype=object), 1),
    "frame": (_frame, FEATURES),
    "series": (lambda: _frame()["c0"], 1),
    "integer_series": (lambda: pd.Series(np.arange(ROWS)), 1),
    "categorical_codes": (lambda: pd.Series(["u", "v"] * (ROWS // 2)).astype("category").cat.codes, 1),
}
for _name, (_make, _features) in FORMS.items():
    _form(_name, _make, _flat, _features)


@way
def structure_dict(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    model = copying(lambda data: tf.concat([data[0]["a"], data[0]["b"]], 1))
    data = {"a": x[:, :3], "b": x[:, 3:]}
    return model, fit_arrays(trainer, model, data, y)[1], model.forms


@way
def structure_dict_alone(trainer: Any) -> tuple[Any, ...]:
    x, _ = arrays()
    model = copying(lambda data: tf.concat([data["a"], data["b"]], 1))
    history = fit(trainer, model, {"a": x[:, :3], "b": x[:, 3:]}, batch_size=BATCH, validate=False)
    return model, history, model.forms


@way
def structure_dict_of_series(trainer: Any) -> tuple[Any, ...]:
    frame = _frame()
    model = copying(lambda data: tf.concat([data[0]["c0"], data[0]["c1"]], 1), 2)
    return (
        model,
        fit_arrays(trainer, model, {"c0": frame["c0"], "c1": frame["c1"]}, arrays()[1])[1],
        model.forms,
    )


@way
def structure_list(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    model = copying(lambda data: tf.concat([data[0][0], data[0][1]], 1))
    return model, fit_arrays(trainer, model, [x[:, :3], x[:, 3:]], y)[1], model.forms


@way
def structure_list_alone(trainer: Any) -> tuple[Any, ...]:
    x, _ = arrays()
    model = copying(lambda data: tf.concat([data[0][0], data[0][1]], 1))
    return model, fit(trainer, model, [x[:, :3], x[:, 3:]], batch_size=BATCH, validate=False), model.forms


@way
def structure_tuple_alone(trainer: Any) -> tuple[Any, ...]:
    x, _ = arrays()
    model = copying(lambda data: tf.concat([data[0][0], data[0][1]], 1))
    return model, fit(trainer, model, (x[:, :3], x[:, 3:]), batch_size=BATCH, validate=False), model.forms


@way
def structure_nested(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    model = copying(lambda data: tf.concat([data[0]["a"][0], data[0]["a"][1], data[0]["b"]], 1))
    return model, fit_arrays(trainer, model, {"a": [x[:, :2], x[:, 2:4]], "b": x[:, 4:]}, y)[1], model.forms


def two_outputs(**options: Any) -> Any:
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    outputs = {
        "a": keras.layers.Dense(1, name="a")(hidden),
        "b": keras.layers.Dense(2, activation="softmax", name="b")(hidden),
    }
    model = keras.Model(inputs, outputs)
    losses = {"a": "mse", "b": "sparse_categorical_crossentropy"}
    model.compile(
        optimizer="adam", loss=losses, weighted_metrics={"a": ["mae"], "b": ["accuracy"]}, **options
    )
    return model


@way
def outputs_as_dict(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    return fit_arrays(trainer, two_outputs(), x, {"a": x[:, 0], "b": y})


@way
def outputs_with_loss_weights(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    return fit_arrays(trainer, two_outputs(loss_weights={"a": 0.5, "b": 2.0}), x, {"a": x[:, 0], "b": y})


@way
def outputs_with_one_sample_weight(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    targets, weights = {"a": x[:, 0], "b": y}, np.linspace(0.5, 2, ROWS).astype("float32")
    return fit_arrays(trainer, two_outputs(), x, targets, sample_weight=weights)


@way
def outputs_with_a_sample_weight_each(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    weights = {"a": np.linspace(0.5, 2, ROWS), "b": np.linspace(2, 1, ROWS)}
    return fit_arrays(trainer, two_outputs(), x, {"a": x[:, 0], "b": y}, sample_weight=weights)


@way
def outputs_with_none_among_targets(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(8)(inputs)
    model = keras.Model(inputs, [keras.layers.Dense(2)(hidden), keras.layers.Dense(3)(hidden)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=[loss, None])
    return model, fit(trainer, model, x, [y, None], batch_size=BATCH, validation_data=(x, [y, None]))


@way
def model_of_several_inputs(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((3,), name="b")}
    hidden = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer="sgd", loss="mse")
    return fit_arrays(trainer, model, {"a": x[:, :3], "b": x[:, 3:]}, y)


@way
def memory_mapped(trainer: Any) -> tuple[Any, ...]:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file.name, arrays()[0])
        x = np.load(file.name, mmap_mode="r")
        model = copying(lambda data: data[0])
        return model, fit_arrays(trainer, model, x, arrays()[1])[1], model.forms


# Arguments of `fit`.


def _argument(name: str, **options: Any) -> None:
    def function(trainer: Any) -> tuple[Any, ...]:
        x, y = arrays()
        return fit_arrays(trainer, dense(), x, y, **options)

    function.__name__ = f"argument_{name}"
    way(function)


_argument("defaults")
_argument("batch_size_1", batch_size=1, epochs=1)
_argument("batch_size_of_all", batch_size=ROWS)
_argument("batch_size_above_all", batch_size=100)
_argument("batch_size_that_divides", batch_size=11)
_argument("no_batch_size", batch_size=None)
_argument("class_weight", class_weight={0: 1.0, 1: 3.0})
_argument("sample_weight", sample_weight=np.linspace(0.5, 2.0, ROWS))
_argument("initial_epoch", initial_epoch=1)
_argument("one_epoch", epochs=1)
_argument("steps_that_divide", steps_per_epoch=3)
_argument("steps_without_batch_size", steps_per_epoch=3, batch_size=None)
_argument("steps_that_do_not_divide", steps_per_epoch=4, epochs=4)
_argument("steps_beyond_the_data", steps_per_epoch=9)
_argument("validation_steps", validation_steps=2)
_argument("validation_batch_size", validation_batch_size=5)
_argument("validation_freq", validation_freq=2)
_argument("validation_freq_list", validation_freq=[1, 3])


@way
def argument_validation_split(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    model = dense()
    return model, fit(trainer, model, x, y, batch_size=BATCH, validation_split=0.25)


@way
def argument_validation_split_of_frames(trainer: Any) -> tuple[Any, ...]:
    model = dense()
    options = {"sample_weight": np.linspace(1, 2, ROWS), "validation_split": 0.3}
    return model, fit(trainer, model, _frame(), pd.Series(arrays()[1]), batch_size=BATCH, **options)


@way
def argument_validation_split_of_sparse(trainer: Any) -> tuple[Any, ...]:
    model = copying(lambda data: _flat(data[0]))
    return model, fit(trainer, model, _sparse(), arrays()[1], batch_size=BATCH, validation_split=0.3)


@way
def argument_validation_with_weights(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    weights = np.linspace(1, 2, ROWS).astype("float32")
    return fit_arrays(trainer, dense(), x, y, validation_data=(x, y, weights))


@way
def argument_validation_as_dataset(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    held_out = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    return fit_arrays(trainer, dense(), x, y, validation_data=held_out)


@way
def argument_validation_as_shuffled_cached_dataset(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    held_out = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=3).batch(5).cache()
    return fit_arrays(trainer, dense(), x, y, validation_data=held_out)


@way
def argument_validation_steps_of_shuffled_dataset(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    held_out = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=3).batch(5)
    return fit_arrays(trainer, dense(), x, y, validation_data=held_out, validation_steps=2)


# How models are compiled and made.


def _compiled(name: str, make: Callable[[], dict[str, Any]], *, build: Callable[..., Any] = dense) -> None:
    def function(trainer: Any) -> tuple[Any, ...]:
        x, y = arrays()
        return fit_arrays(trainer, build(**make()), x, y)

    function.__name__ = f"compile_{name}"
    way(function)


def _schedule() -> Any:
    return keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.8, staircase=True)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd_momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, centered=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "schedule": lambda: keras.optimizers.Adam(_schedule()),
    "clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.Adam(0.01, clipvalue=0.01),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=7),
    "ema_at_the_end": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=4),
    "weight_decay": lambda: keras.optimizers.SGD(0.05, weight_decay=0.01),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}
for _name, _optimizer in OPTIMIZERS.items():
    _compiled(_name, lambda optimizer=_optimizer: {"optimizer": optimizer()})  # type: ignore[misc]
_compiled("by_name", lambda: {"optimizer": "rmsprop"})
_compiled("steps_per_execution", lambda: {"steps_per_execution": 3})
_compiled("run_eagerly", lambda: {"run_eagerly": True})
_compiled("jit", lambda: {"jit_compile": True})
_compiled("auto_scale_loss", lambda: {"auto_scale_loss": False})
_compiled(
    "metrics_objects", lambda: {"metrics": [keras.metrics.SparseTopKCategoricalAccuracy(1, name="top")]}
)
_compiled("outputs", dict, build=regression)


@way
def model_subclass(trainer: Any) -> tuple[Any, ...]:
    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop = keras.layers.Dense(8), keras.layers.Dropout(0.5)
            self.last = keras.layers.Dense(2)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.last(self.drop(self.first(x), training=training))

    model = Net()
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return fit_arrays(trainer, model, *arrays())


@way
def model_with_losses_of_layers(trainer: Any) -> tuple[Any, ...]:
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer="adam", loss="mse")
    return fit_arrays(trainer, model, *arrays())


@way
def model_with_augmentation(trainer: Any) -> tuple[Any, ...]:
    model = keras.Sequential(
        [
            keras.Input((2, 3, 1)),
            keras.layers.RandomFlip(seed=3),
            keras.layers.GaussianNoise(0.2, seed=5),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = arrays()
    return fit_arrays(trainer, model, x.reshape(ROWS, 2, 3, 1), y)


@way
def model_mixed_precision(trainer: Any) -> tuple[Any, ...]:
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return fit_arrays(trainer, dense(), *arrays())
    finally:
        keras.config.set_dtype_policy(previous)


class Gan(keras.Model):
    """A model without `call`: two networks, two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = keras.Sequential(
            [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(FEATURES)]
        )
        self.judge = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
        self.seeds = keras.random.SeedGenerator(4)
        self.judge_loss = keras.metrics.Mean(name="judge_loss")
        self.maker_loss = keras.metrics.Mean(name="maker_loss")

    def noise(self, count: Any) -> Any:
        return keras.random.normal((count, 3), seed=self.seeds)

    def compile(self, maker_optimizer: Any, judge_optimizer: Any) -> None:  # type: ignore[override]
        super().compile()
        self.maker_optimizer, self.judge_optimizer = maker_optimizer, judge_optimizer

    @property
    def metrics(self) -> list[Any]:
        return [self.judge_loss, self.maker_loss]

    def train_step(self, real: Any) -> dict[str, Any]:
        if isinstance(real, tuple):
            real = real[0]
        noise = self.noise(tf.shape(real)[0])
        entropy = keras.losses.BinaryCrossentropy(from_logits=True)
        with tf.GradientTape(persistent=True) as tape:
            fake = self.maker(noise)
            of_real, of_fake = self.judge(real), self.judge(fake)
            judge_loss = entropy(tf.ones_like(of_real), of_real) + entropy(tf.zeros_like(of_fake), of_fake)
            maker_loss = entropy(tf.ones_like(of_fake), of_fake)
        for net, optimizer, loss in (
            (self.judge, self.judge_optimizer, judge_loss),
            (self.maker, self.maker_optimizer, maker_loss),
        ):
            gradients = tape.gradient(loss, net.trainable_variables)
            optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        self.judge_loss.update_state(judge_loss)
        self.maker_loss.update_state(maker_loss)
        return {"judge_loss": self.judge_loss.result(), "maker_loss": self.maker_loss.result()}


def gan(trainer: Any, wrap: Callable[[Any], Any] = lambda one: one, kind: type[Gan] = Gan) -> Any:
    model = kind()
    model.compile(wrap(keras.optimizers.Adam(0.01)), wrap(keras.optimizers.RMSprop(0.01)))
    return model


@way
def step_without_call(trainer: Any) -> tuple[Any, ...]:
    model = gan(trainer, getattr(trainer, "wrap_optimizer", lambda one: one))
    return model, fit(trainer, model, arrays()[0], batch_size=BATCH, validate=False)


@way
def step_without_call_from_dataset(trainer: Any) -> tuple[Any, ...]:
    model = gan(trainer, getattr(trainer, "wrap_optimizer", lambda one: one))
    data = tf.data.Dataset.from_tensor_slices(arrays()[0]).shuffle(ROWS, seed=2).batch(BATCH).prefetch(2)
    return model, fit(trainer, model, data, validate=False)


@way
def step_that_returns_its_own_logs(trainer: Any) -> tuple[Any, ...]:
    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.inner(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x)[:, 0] - tf.cast(y, tf.float32)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"own": loss, "twice": 2 * loss}

    model = Net()
    model.compile(optimizer="adam", loss="mse")
    return fit_arrays(trainer, model, *arrays())


# Random numbers of TensorFlow's own ops inside of the step.


class Sampled(keras.layers.Layer):
    """Draws from the distribution that it is given, as autoencoders do in training and afterwards."""

    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        noise = tf.random.normal(tf.shape(mean))
        return mean + tf.exp(0.5 * log_variance) * noise


class Autoencoder(keras.Model):
    """A variational autoencoder with steps of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.layers.Dense(4, activation="tanh")
        self.mean, self.log_variance = keras.layers.Dense(2), keras.layers.Dense(2)
        self.sampled, self.decoder = Sampled(), keras.layers.Dense(FEATURES)
        self.total = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total]

    def call(self, x: Any) -> Any:
        code = self.encoder(x)
        return self.decoder(self.sampled([self.mean(code), self.log_variance(code)]))

    def losses_of(self, x: Any) -> Any:
        code = self.encoder(x)
        mean, log_variance = self.mean(code), self.log_variance(code)
        copied = tf.reduce_mean(tf.square(self.decoder(self.sampled([mean, log_variance])) - x))
        return copied - 0.01 * tf.reduce_mean(1 + log_variance - tf.square(mean) - tf.exp(log_variance))

    def train_step(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = self.losses_of(x)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result()}

    def test_step(self, x: Any) -> dict[str, Any]:
        self.total.update_state(self.losses_of(x))
        return {"loss": self.total.result()}


class NoisyGan(Gan):
    """A GAN whose noise is TensorFlow's."""

    def noise(self, count: Any) -> Any:
        return tf.random.normal((count, 3))


class Blurred(keras.layers.Layer):
    """Draws with several random ops, in training and afterwards."""

    def call(self, x: Any) -> Any:
        x = x + tf.random.truncated_normal(tf.shape(x), stddev=0.1) * tf.random.uniform([], 0.5, 1.5)
        is_scaled = tf.random.uniform([], 0, 4, tf.int32) > 2
        x = tf.cond(is_scaled, lambda: x * tf.random.gamma([FEATURES], 3.0), lambda: x)
        return tf.nn.dropout(x, 0.2)


def blurred(**options: Any) -> Any:
    """Return a compiled network whose input is drawn anew."""
    model = keras.Sequential([keras.Input((FEATURES,)), Blurred(), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss=loss, **options)
    return model


@way
def random_autoencoder(trainer: Any) -> tuple[Any, ...]:
    model, data = Autoencoder(), tf.data.Dataset.from_tensor_slices(arrays()[0]).batch(BATCH)
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    history = fit(trainer, model, data, validation_data=data.take(3))
    return model, history, trainer.predict(model, arrays()[0], verbose=0)


@way
def random_gan(trainer: Any) -> tuple[Any, ...]:
    model = gan(trainer, getattr(trainer, "wrap_optimizer", lambda one: one), NoisyGan)
    return model, fit(trainer, model, arrays()[0], batch_size=BATCH, validate=False)


@way
def random_several_steps_per_execution(trainer: Any) -> tuple[Any, ...]:
    return fit_arrays(trainer, blurred(steps_per_execution=4), *arrays())


@way
def random_fits_of_one_compile(trainer: Any) -> tuple[Any, ...]:
    """Keras keeps its functions, and their kernels, until the model is compiled again."""
    model, (x, y) = blurred(), arrays()
    first = fit_arrays(trainer, model, x, y, epochs=2)[1]
    scores = [trainer.evaluate(model, x, y, verbose=0)]
    second = fit_arrays(trainer, model, x, y, epochs=2)[1]
    scores.append(trainer.evaluate(model, x, y, verbose=0))
    model.compile(optimizer="sgd", loss=model.loss)
    third = fit_arrays(trainer, model, x, y, epochs=2)[1]
    return model, first, second, third, scores, trainer.predict(model, x, verbose=0)


@way
def random_fits_of_two_models_in_turn(trainer: Any) -> tuple[Any, ...]:
    models, histories = [blurred(), blurred()], []
    for _ in range(2):
        histories += [fit_arrays(trainer, model, *arrays(), epochs=2)[1] for model in models]
    return *models, *histories


# Callbacks.


class Recorder(keras.callbacks.Callback):
    """Writes down every event with its logs, and changes the logs as users' callbacks do."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def get_state(self) -> list[str]:
        return self.events

    def load_state(self, state: list[str]) -> None:
        self.events[:] = state


def _record(name: str) -> Callable[..., None]:
    def hook(self: Recorder, *args: Any, logs: Any = None) -> None:
        number = [one for one in args if isinstance(one, int)]
        logs = next((one for one in args if isinstance(one, dict)), logs)
        values = {key: np.asarray(value).tolist() for key, value in (logs or {}).items()}
        self.events.append(f"{name} {number} {values}")
        if name == "on_epoch_end":
            logs["own"] = 1.0

    return hook


for _event in ("train", "epoch", "train_batch", "test", "test_batch"):
    for _edge in ("begin", "end"):
        setattr(Recorder, f"on_{_event}_{_edge}", _record(f"on_{_event}_{_edge}"))


def _callback(name: str, make: Callable[[], Any], **options: Any) -> None:
    def function(trainer: Any) -> tuple[Any, ...]:
        recorder = Recorder()
        made = make()
        callbacks = [*(made if isinstance(made, list) else [made]), recorder]
        options_of_compile = {"optimizer": keras.optimizers.Adam(0.01, use_ema=True)} if "ema" in name else {}
        model, history = fit_arrays(
            trainer, dense(**options_of_compile), *arrays(), callbacks=callbacks, **options
        )
        return model, history, recorder.events

    function.__name__ = f"callback_{name}"
    way(function)


def _falling(epoch: int, rate: float) -> float:
    return rate * 0.9


_callback("recorder", list)
_callback("learning_rate_scheduler", lambda: keras.callbacks.LearningRateScheduler(_falling))
_callback(
    "reduce_on_plateau", lambda: keras.callbacks.ReduceLROnPlateau(patience=0, min_delta=10, factor=0.5)
)
_callback(
    "early_stopping",
    lambda: keras.callbacks.EarlyStopping(patience=1, min_delta=10, restore_best_weights=True),
    epochs=5,
)
_callback("terminate_on_nan", keras.callbacks.TerminateOnNaN)
_callback("swap_ema_weights", lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
_callback(
    "lambda", lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(seen=epoch))
)


@way
def callback_that_counts(trainer: Any) -> tuple[Any, ...]:
    class Counting(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.batches, self.names = 0, ["begun"]
            self.rng, self.stream = np.random.default_rng(4), random.Random(4)
            self.losses = np.zeros(EPOCHS)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batches += 1
            self.model.optimizer.learning_rate.assign(
                0.01 * self.rng.uniform() + 0.001 * self.stream.random()
            )

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.names.append(f"{epoch} {self.batches}")
            self.losses[epoch] = logs["loss"]

    counting = Counting()
    model, history = fit_arrays(trainer, dense(), *arrays(), callbacks=[counting])
    return model, history, counting.names, counting.losses.tolist()


@way
def callback_made_from_early_stopping(trainer: Any) -> tuple[Any, ...]:
    class Patient(keras.callbacks.EarlyStopping):
        def __init__(self) -> None:
            super().__init__(monitor="val_loss", min_delta=100.0, patience=2, restore_best_weights=True)
            self.seen = 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            self.seen += 1
            self.model.optimizer.learning_rate.assign(0.1 / self.seen)

    patient = Patient()
    model, history = fit_arrays(trainer, light(), *arrays(), epochs=6, callbacks=[patient])
    return model, history, patient.seen, patient.wait, patient.best_epoch, patient.stopped_epoch


@way
def callback_that_stops(trainer: Any) -> tuple[Any, ...]:
    class Stopping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.model.optimizer.iterations == 9:
                self.model.stop_training = True

    return fit_arrays(trainer, dense(), *arrays(), callbacks=[Stopping()])


# tf.data.


def slices(*more: Any) -> tf.data.Dataset:
    """Return a dataset of the rows of `arrays`, not batched."""
    return tf.data.Dataset.from_tensor_slices((*arrays(), *more))


def _dataset(name: str, make: Callable[[], tf.data.Dataset], **options: Any) -> None:
    def function(trainer: Any) -> tuple[Any, ...]:
        held_out = slices().batch(BATCH)
        model = light()
        return model, fit(trainer, model, make(), **{"validation_data": held_out, **options})

    function.__name__ = f"dataset_{name}"
    way(function)


def _noisy(x: Any, y: Any) -> Any:
    return x + keras.random.normal(tf.shape(x), seed=_noisy.seeds) * 0.1, y  # type: ignore[attr-defined]


def _augmented() -> tf.data.Dataset:
    _noisy.seeds = keras.random.SeedGenerator(8)  # type: ignore[attr-defined]
    return slices().batch(BATCH).map(_noisy)


def _layer_in_map() -> tf.data.Dataset:
    layer = keras.Sequential(
        [keras.layers.RandomFlip("horizontal", seed=1), keras.layers.RandomContrast(0.3, seed=2)]
    )
    images = slices().map(lambda x, y: (tf.reshape(x, [2, 3, 1]), y)).batch(BATCH)
    return images.map(lambda x, y: (tf.reshape(layer(x, training=True), [-1, FEATURES]), y)).prefetch(2)


def _generator_of_unknown_size() -> tf.data.Dataset:
    def rows() -> Any:
        x, y = arrays()
        for row in np.random.permutation(ROWS):
            yield x[row], y[row]

    spec = (tf.TensorSpec((FEATURES,), tf.float32), tf.TensorSpec((), tf.int64))
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(BATCH).prefetch(2)


def _interleaved() -> tf.data.Dataset:
    x, y = arrays()
    parts = tf.data.Dataset.range(4)
    rows = parts.interleave(
        lambda part: tf.data.Dataset.from_tensor_slices((x, y)).shard(4, part).shuffle(6, seed=1),
        cycle_length=2,
    )
    return rows.batch(BATCH)


def _drawing_in_map() -> tf.data.Dataset:
    return slices().batch(BATCH).map(lambda x, y: (x + tf.random.uniform(tf.shape(x), seed=3) * 0.1, y))


def _with_generator() -> tf.data.Dataset:
    stream = tf.random.Generator.from_seed(5)
    return slices().batch(BATCH).map(lambda x, y: (x + 0.1 * stream.normal(tf.shape(x)), y))


def _py_function() -> tf.data.Dataset:
    def scaled(x: Any) -> Any:
        return (x * np.random.uniform(0.5, 1.5)).astype("float32")

    def call(x: Any, y: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(scaled, [x], tf.float32), [None, FEATURES]), y

    return slices().batch(BATCH).map(call)


def _sampled() -> tf.data.Dataset:
    parts = [slices().shuffle(ROWS, seed=one).repeat() for one in (1, 2)]
    return tf.data.Dataset.sample_from_datasets(parts, [0.3, 0.7], seed=4).take(ROWS).batch(BATCH)


DATASETS: dict[str, Callable[[], tf.data.Dataset]] = {
    "plain": lambda: slices().batch(BATCH),
    "drop_remainder": lambda: slices().batch(BATCH, drop_remainder=True),
    "shuffle": lambda: slices().shuffle(20).batch(BATCH).prefetch(2),
    "shuffle_with_seed": lambda: slices().shuffle(ROWS, seed=9).batch(BATCH).prefetch(tf.data.AUTOTUNE),
    "shuffle_each_time_the_same": lambda: slices().shuffle(9, seed=2, reshuffle_each_iteration=False).batch(BATCH),
    "cache_shuffle": lambda: slices().cache().shuffle(ROWS, seed=1).batch(BATCH),
    "shuffle_cache": lambda: slices().shuffle(ROWS).batch(BATCH).cache().prefetch(2),
    "map_cache_shuffle_twice": lambda: slices().shuffle(30).map(lambda x, y: (x * 2, y)).cache().shuffle(9)
    .batch(BATCH),
    "shuffle_before_repeat": lambda: slices().shuffle(9, seed=7).repeat(2).batch(BATCH),
    "cache_shuffle_repeat": lambda: slices().cache().shuffle(9, seed=7).repeat(2).batch(BATCH),
    "filter": lambda: slices().filter(lambda x, y: x[0] > -1.0).shuffle(20, seed=1).batch(BATCH),
    "unbatch": lambda: slices().batch(4).unbatch().shuffle(9, seed=3).batch(BATCH),
    "interleave": _interleaved,
    "generator_of_permutation": _generator_of_unknown_size,
    "keras_random_in_map": _augmented,
    "layers_in_map": _layer_in_map,
    "layers_in_map_cached": lambda: _layer_in_map().cache(),
    "tf_random_in_map": _drawing_in_map,
    "tf_generator_in_map": _with_generator,
    "numpy_function": _py_function,
    "counter": lambda: tf.data.Dataset.zip((tf.data.Dataset.counter(), slices())).map(lambda n, row: row).batch(BATCH),
    "random": lambda: tf.data.Dataset.zip((tf.data.Dataset.random(seed=4), slices())).map(
        lambda n, row: (row[0] + tf.cast(n % 7, tf.float32) / 70, row[1])
    ).batch(BATCH),
    "sample_from_datasets": _sampled,
    "windows": lambda: slices().window(BATCH).flat_map(lambda x, y: tf.data.Dataset.zip((x, y)).batch(BATCH)),
    "sample_weights": lambda: tf.data.Dataset.from_tensor_slices(
        (*arrays(), np.linspace(0.5, 2, ROWS).astype("float32"))
    ).batch(BATCH),
}  # fmt: skip
for _name, _make in DATASETS.items():
    _dataset(_name, _make)
_dataset("class_weight", lambda: slices().batch(BATCH), class_weight={0: 1.0, 1: 2.0})
_dataset("repeat_with_steps", lambda: slices().shuffle(20, seed=3).repeat().batch(BATCH), steps_per_epoch=4)
_dataset(
    "cache_repeat_with_steps", lambda: slices().shuffle(20).cache().repeat().batch(BATCH), steps_per_epoch=4
)
_dataset("steps_that_divide", lambda: slices().shuffle(20, seed=3).batch(BATCH), steps_per_epoch=3)
_dataset(
    "steps_that_do_not_divide",
    lambda: slices().shuffle(20, seed=3).batch(BATCH),
    steps_per_epoch=4,
    epochs=4,
)
_dataset("steps_beyond_the_data", lambda: slices().shuffle(20, seed=3).batch(BATCH), steps_per_epoch=9)
_dataset("validation_steps", lambda: slices().batch(BATCH), validation_steps=2)


@way
def dataset_split_after_its_shuffle(trainer: Any) -> tuple[Any, ...]:
    rows = slices().batch(4).shuffle(ROWS)
    model = light()
    return model, fit(trainer, model, rows.skip(3), validation_data=rows.take(3))


@way
def dataset_alone(trainer: Any) -> tuple[Any, ...]:
    model = copying(lambda data: data)
    data = tf.data.Dataset.from_tensor_slices(arrays()[0]).batch(BATCH)
    return model, fit(trainer, model, data, validation_data=data), model.forms


@way
def dataset_of_one_tuple(trainer: Any) -> tuple[Any, ...]:
    model = copying(lambda data: data[0])
    data = tf.data.Dataset.from_tensor_slices((arrays()[0],)).batch(BATCH)
    return model, fit(trainer, model, data, validation_data=data), model.forms


@way
def dataset_of_dicts(trainer: Any) -> tuple[Any, ...]:
    model = copying(lambda data: tf.concat([data["a"], data["b"]], 1))
    x = arrays()[0]
    data = tf.data.Dataset.from_tensor_slices({"a": x[:, :3], "b": x[:, 3:]}).batch(BATCH)
    return model, fit(trainer, model, data, validation_data=data), model.forms


@way
def dataset_of_ragged_rows(trainer: Any) -> tuple[Any, ...]:
    model = copying(lambda data: _flat(data[0]), 4)
    data = tf.data.Dataset.from_tensor_slices((_ragged(), arrays()[1])).batch(BATCH)
    return model, fit(trainer, model, data, validation_data=data), model.forms


@way
def dataset_of_sparse_rows(trainer: Any) -> tuple[Any, ...]:
    model = copying(lambda data: _flat(data[0]))
    sparse = tf.sparse.from_dense(_sparse().toarray())
    data = tf.data.Dataset.from_tensor_slices((sparse, arrays()[1])).batch(BATCH)
    return model, fit(trainer, model, data, validation_data=data), model.forms


@way
def dataset_of_time_series(trainer: Any) -> tuple[Any, ...]:
    series = np.sin(np.arange(60, dtype="float32"))[:, None] * np.ones((1, 3), "float32")
    data = keras.utils.timeseries_dataset_from_array(
        series, series[10:, 0], sequence_length=10, batch_size=BATCH, shuffle=True, seed=3
    )
    model = keras.Sequential([keras.Input((10, 3)), keras.layers.LSTM(4), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    return model, fit(trainer, model, data, validation_data=data)


@way
def dataset_of_text(trainer: Any) -> tuple[Any, ...]:
    words = np.array(
        [f"{'good' if label else 'bad'} film number {row % 7}" for row, label in enumerate(arrays()[1])]
    )
    rows = tf.data.Dataset.from_tensor_slices((words, arrays()[1])).shuffle(ROWS, seed=5).batch(BATCH)
    vectorize = keras.layers.TextVectorization(max_tokens=30, output_sequence_length=5)
    vectorize.adapt(rows.map(lambda text, _: text))
    data = rows.map(lambda text, label: (vectorize(text), label)).cache().prefetch(2)
    model = keras.Sequential(
        [
            keras.layers.Embedding(30, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
    return model, fit(trainer, model, data, validation_data=data)


# PyDatasets and generators.


class Items(keras.utils.PyDataset):
    """Batches whose items are whatever `make` makes of rows."""

    def __init__(self, make: Callable[[Any, Any], Any] = lambda x, y: (x, y), **options: Any) -> None:
        super().__init__(**options)
        self.x, self.y = arrays()
        self.make = make

    def __len__(self) -> int:
        return -(-ROWS // BATCH)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.make(self.x[rows], self.y[rows])


class DrawingItems(Items):
    """Items with a random stream of their own, an epoch counter and an order that is shuffled in place."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rng, self.epoch, self.order = np.random.default_rng(3), 0, np.arange(ROWS)

    def __getitem__(self, index: int) -> Any:
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        noise = self.rng.normal(size=(len(rows), FEATURES)).astype("float32")
        return self.x[rows] + 0.1 * noise + 0.01 * self.epoch, self.y[rows]

    def on_epoch_end(self) -> None:
        self.epoch += 1
        self.rng.shuffle(self.order)


class GlobalItems(Items):
    """Items that draw from NumPy's global stream."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + np.random.normal(size=x.shape).astype("float32") * 0.1, y

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.x)


def _items(name: str, make: Callable[[], Any], model: Callable[[], Any] = light, **options: Any) -> None:
    def function(trainer: Any) -> tuple[Any, ...]:
        net = model()
        history = fit(trainer, net, make(), **{"validation_data": (Items()), **options})
        return net, history, getattr(net, "forms", None)

    function.__name__ = f"items_{name}"
    way(function)


def _copying_items(name: str, make: Callable[[Any, Any], Any], look: Callable[[Any], Any]) -> None:
    items = lambda: Items(make)  # noqa: E731 - made anew for each
    _items(name, items, lambda: copying(look), validate=False, validation_data=None)


_items("pairs", Items)
_items("steps_that_do_not_divide", Items, steps_per_epoch=4, epochs=4)
_items("workers", lambda: Items(workers=2, max_queue_size=4))
_items("class_weight", Items, class_weight={0: 1.0, 1: 2.0})
_items("weights", lambda: Items(lambda x, y: (x, y, np.ones(len(y), "float32") + y)))
_items("lists", lambda: Items(lambda x, y: [x, y]))
_items("own_stream", DrawingItems)
_items("global_stream", GlobalItems)
_copying_items(
    "dict_alone", lambda x, y: {"a": x[:, :3], "b": x[:, 3:]}, lambda d: tf.concat([d["a"], d["b"]], 1)
)
_copying_items("array_alone", lambda x, y: x, lambda data: data[0])
_copying_items("one_tuple", lambda x, y: (x,), lambda data: data[0])
_copying_items("dicts", lambda x, y: ({"a": x}, {"b": y}), lambda data: data[0]["a"])
_copying_items("float64", lambda x, y: (x.astype("float64"), y), lambda data: data[0])
_copying_items("sparse_tensors", lambda x, y: (tf.sparse.from_dense(x), y), lambda data: _flat(data[0]))


def _batches(*, forever: bool = False) -> Any:
    x, y = arrays()
    while True:
        for start in range(0, ROWS, BATCH):
            yield x[start : start + BATCH] * np.float32(np.random.uniform(0.5, 1.5)), y[start : start + BATCH]
        if not forever:
            return


@way
def generator_with_steps(trainer: Any) -> tuple[Any, ...]:
    model = light()
    return model, fit(
        trainer, model, _batches(forever=True), steps_per_epoch=4, validation_data=slices().batch(BATCH)
    )


@way
def generator_of_one_epoch(trainer: Any) -> tuple[Any, ...]:
    model = light()
    return model, fit(trainer, model, _batches(), epochs=1, validation_data=slices().batch(BATCH))


def _same_batch() -> Any:
    # How far a prefetch reads ahead is not known, so all batches are alike.
    x, y = arrays(seed=6)
    while True:
        yield x[:BATCH], y[:BATCH]


@way
def endless_generator_as_validation(trainer: Any) -> tuple[Any, ...]:
    model = light()
    return model, fit(
        trainer, model, slices().batch(BATCH), validation_data=_same_batch(), validation_steps=2
    )


class CpuArray(np.ndarray):
    """An array with what Keras asks of a PyTorch tensor."""

    def cpu(self) -> Any:
        return self


def _loader() -> Any:
    """Return what stands in for a PyTorch DataLoader: PyTorch itself is too large for the tests."""

    class DataLoader:
        def __init__(self) -> None:
            self.dataset, self.batch_size = list(range(ROWS)), BATCH

        def __len__(self) -> int:
            return -(-ROWS // BATCH)

        def __iter__(self) -> Any:
            for x, y in _batches():
                yield x.view(CpuArray), y.view(CpuArray)

    DataLoader.__module__ = "torch.utils.data.dataloader"
    torch = types.ModuleType("torch")
    torch.utils = types.SimpleNamespace(data=types.SimpleNamespace(DataLoader=DataLoader))  # type: ignore[attr-defined]
    sys.modules["torch"] = torch
    return DataLoader()


@way
def loader(trainer: Any) -> tuple[Any, ...]:
    model, had_torch = light(), "torch" in sys.modules
    try:
        return model, fit(trainer, model, _loader(), validation_data=slices().batch(BATCH))
    finally:
        if not had_torch:
            del sys.modules["torch"]


# Several fits.


@way
def fits_in_a_loop(trainer: Any) -> tuple[Any, ...]:
    model, histories = dense(), []
    for _ in range(4):
        histories.append(fit_arrays(trainer, model, *arrays(), epochs=1)[1])
        np.random.uniform()
    return model, *histories


@way
def fits_of_two_phases_over_one_pipeline(trainer: Any) -> tuple[Any, ...]:
    data, model = _layer_in_map().shuffle(3, seed=1), dense()
    model.layers[0].trainable = False
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    first = fit(trainer, model, data, epochs=2, validation_data=slices().batch(BATCH))
    model.layers[0].trainable = True
    model.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, first, fit(trainer, model, data, epochs=2, validation_data=slices().batch(BATCH))


@way
def fits_over_one_cached_pipeline(trainer: Any) -> tuple[Any, ...]:
    data, model = slices().shuffle(ROWS).batch(BATCH).cache(), dense()
    first = fit(trainer, model, data, epochs=2, validation_data=data)
    # What a script may look at before its next `fit`.
    between = list(model.history.epoch)
    return model, first, between, fit(trainer, model, data, epochs=2, validation_data=data), model.history


@way
def fits_that_share_a_callback(trainer: Any) -> tuple[Any, ...]:
    class Counting(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.batches = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batches += 1
            self.model.optimizer.learning_rate.assign(0.1 / self.batches)

    model, counting = light(), Counting()
    histories = [fit_arrays(trainer, model, *arrays(), epochs=2, callbacks=[counting])[1] for _ in range(2)]
    return model, *histories, counting.batches


@way
def fits_of_folds(trainer: Any) -> tuple[Any, ...]:
    x, y = arrays()
    folds, histories, scores = np.array_split(np.random.permutation(ROWS), 3), [], []
    for number in range(3):
        rest = np.concatenate([fold for other, fold in enumerate(folds) if other != number])
        model = dense()
        held_out = x[folds[number]], y[folds[number]]
        histories.append(fit_arrays(trainer, model, x[rest], y[rest], epochs=1, validation_data=held_out)[1])
        scores.append(trainer.evaluate(model, *held_out, verbose=0))
    return model, *histories, scores


@way
def fits_of_two_models_in_turn(trainer: Any) -> tuple[Any, ...]:
    first, second = dense(), regression()
    histories = []
    for _ in range(2):
        histories.append(fit_arrays(trainer, first, *arrays(), epochs=1)[1])
        x, _ = arrays()
        histories.append(
            fit_arrays(trainer, second, x, trainer.predict(first, x, verbose=0)[:, 0], epochs=1)[1]
        )
    return first, second, *histories
