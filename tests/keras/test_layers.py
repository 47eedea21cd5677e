"""Norms of weights and gradients by layer: right, and without any effect on training; plain Keras is the oracle."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from amount import chosen
from kinds import InterruptAt, Interrupted
from kinds import train as train_kind
from ways import ALIKE, WAYS, PlainKeras, outcome

import det_keras as det
from det_keras.keras.training.boundaries.layers import variable_names

CONFIG = {"profiling": {"enabled": False, "layers": True}}
ROWS, BATCH, CLASSES = 96, 16, 5


# Those of the optimizers: what the data is makes no difference here.
ALIKE_HERE = {name for name in WAYS if not name.startswith("compile_")} | ALIKE


@pytest.mark.parametrize("name", chosen(WAYS, ALIKE_HERE))
def test_training_with_norms_is_that_of_plain_keras(name, tmp_path):
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(11)
    plain = outcome(WAYS[name](PlainKeras()))
    keras.backend.clear_session(free_memory=False)
    with det.keras.init(config=CONFIG, run_dir=tmp_path / "run", seed=11) as context:
        assert outcome(WAYS[name](context)) == plain


class Scale(keras.layers.Layer):
    """A layer whose gradient is a product."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.factor = self.add_weight(shape=(), initializer="ones", name="factor")

    def call(self, inputs):
        return (
            inputs
            * self.scale
            * 0.5
            * self.factor
            * tf.math.rsqrt(tf.reduce_mean(inputs**2, -1, keepdims=True))
        )


def images():
    layers = keras.layers
    body = [
        keras.Input((8, 8, 3)),
        layers.Conv2D(8, 3, activation="relu", kernel_regularizer="l2"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(16, activation="gelu"),
        Scale(),
        layers.Dense(CLASSES),
    ]
    return keras.Sequential(body), np.random.default_rng(0).random((ROWS, 8, 8, 3), dtype="float32")


def words():
    layers = keras.layers
    body = [keras.Input((7,), dtype="int32"), layers.Embedding(30, 8), layers.GRU(8), layers.Dense(CLASSES)]
    return keras.Sequential(body), np.random.default_rng(0).integers(0, 30, (ROWS, 7))


def attention():
    layers = keras.layers
    x = inputs = keras.Input((7, 8))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.GroupNormalization(2)(layers.SeparableConv1D(8, 3)(x))
    return keras.Model(
        inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x))
    ), np.random.default_rng(0).random((ROWS, 7, 8), dtype="float32")


def normalised():
    """A model whose weights differ after 6 steps of SGD if the gradient of `gamma`, a product, has a second use."""
    layers = keras.layers
    body = [
        keras.Input((16, 16, 3)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(32, activation="gelu"),
        layers.Dense(CLASSES),
    ]
    return keras.Sequential(body), np.random.default_rng(0).random((ROWS, 16, 16, 3), dtype="float32")


MODELS = {"images": images, "normalised": normalised, "words": words, "attention": attention}
OPTIMIZERS = {
    # With SGD a gradient has one use, and TensorFlow may reorder what it is multiplied with.
    "sgd": lambda: keras.optimizers.SGD(0.02),
    "momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True),
    "sgd that adds up": lambda: keras.optimizers.SGD(0.02, gradient_accumulation_steps=3),
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "scaled loss": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.02)),
}


def compiled(model, optimizer, *, jit=False, steps=1):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit, steps_per_execution=steps)
    return model


def state(model):
    return [np.asarray(variable) for variable in [*model.variables, *model.optimizer.variables]]


def train(model_name, optimizer, run_dir=None, **options):
    """Train with plain Keras, or with norms if there is a run directory; return the final state."""
    keras.backend.clear_session(free_memory=False)
    arguments = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False}
    y = np.random.default_rng(1).integers(0, CLASSES, ROWS)
    if run_dir is None:
        keras.utils.set_random_seed(5)
        model, x = MODELS[model_name]()
        compiled(model, OPTIMIZERS[optimizer](), **options).fit(x, y, **arguments)
        return state(model)
    with det.keras.init(config=CONFIG, run_dir=run_dir, seed=5) as context:
        model, x = MODELS[model_name]()
        compiled(model, OPTIMIZERS[optimizer](), **options)
        context.fit(model, x=x, y=y, validate=False, **arguments)
        return state(model)


CASES = [
    *(("images", optimizer, {}) for optimizer in OPTIMIZERS),
    ("normalised", "sgd", {}),
    ("normalised", "momentum", {}),
    ("words", "sgd", {}),
    ("attention", "sgd", {}),
    ("images", "sgd", {"jit": True}),
    ("images", "momentum", {"steps": 3}),
]


@pytest.mark.parametrize(("model", "optimizer", "options"), CASES, ids=str)
def test_final_weights_are_those_without_norms(model, optimizer, options, tmp_path):
    plain, measured = train(model, optimizer, **options), train(model, optimizer, tmp_path, **options)
    for one, other in zip(plain, measured, strict=True):
        np.testing.assert_array_equal(one, other)
    assert reports(tmp_path)[-1]["gradient_norm"] > 0


def reports(run_dir):
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row["metrics"] for row in rows if row["group"] == "layers"]


def test_norms_are_those_that_a_tape_gives(tmp_path):
    """Before the update: with one batch in an epoch, the gradient of the model as it was."""
    y = np.random.default_rng(1).integers(0, CLASSES, ROWS)
    for name in MODELS:
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(5)
        with det.keras.init(config=CONFIG, run_dir=tmp_path / name, seed=5) as context:
            model, x = MODELS[name]()
            for layer in model.layers:
                if isinstance(layer, keras.layers.Dropout):
                    layer.rate = 0.0
            compiled(model, keras.optimizers.SGD(0.01))
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x, y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            expected = by_layer(model, [tf.convert_to_tensor(each) for each in gradients])
            context.fit(model, x=x, y=y, batch_size=ROWS, epochs=1, verbose=0, shuffle=False, validate=False)
            weights = by_layer(model, model.trainable_variables)
        (report,) = reports(tmp_path / name)
        for layer, norm in expected.items():
            # The step is another graph, whose sums have another order.
            assert report[f"gradient_norm/{layer}"] == pytest.approx(norm, rel=1e-3)
            assert report[f"weight_norm/{layer}"] == pytest.approx(weights[layer], rel=1e-5)
        total = np.sqrt(sum(norm**2 for norm in expected.values()))
        assert report["gradient_norm"] == pytest.approx(total, rel=1e-3)


def by_layer(model, values):
    squares = {}
    for name, value in zip(variable_names(model.trainable_variables), values, strict=True):
        layer = name.rpartition("/")[0]
        squares[layer] = squares.get(layer, 0.0) + float(np.sum(np.asarray(value, np.float64) ** 2))
    return {layer: np.sqrt(square) for layer, square in squares.items()}


def run_kind(kind, run_dir, *, at=10**6, layers=True):
    config = {"min_checkpoint_period": {"batches": 3}, "profiling": {"enabled": False, "layers": layers}}
    return train_kind(kind, run_dir, InterruptAt(at), **config)


def interrupt_kind(kind, run_dir, at, **options):
    with pytest.raises(Interrupted):
        run_kind(kind, run_dir, at=at, **options)


@pytest.mark.parametrize("kind", ["arrays", "two_optimizers"])
def test_resumed_training_reports_the_same_norms(kind, tmp_path):
    expected = run_kind(kind, tmp_path / "undisturbed")
    for at in (5, 4, 14):
        interrupt_kind(kind, tmp_path / "run", at)
    assert run_kind(kind, tmp_path / "run") == expected
    assert reports(tmp_path / "run") == reports(tmp_path / "undisturbed")


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)], ids=["off", "on"])
def test_resume_may_turn_the_norms_on_or_off(before, after, tmp_path):
    expected = run_kind("two_optimizers", tmp_path / "undisturbed", layers=False)
    interrupt_kind("two_optimizers", tmp_path / "run", 5, layers=before)
    assert run_kind("two_optimizers", tmp_path / "run", layers=after) == expected


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path):
    optimizer = keras.optimizers.SGD()
    with det.keras.init(run_dir=tmp_path) as context:
        assert context.wrap_optimizer(optimizer) is optimizer
        assert "apply" not in vars(optimizer)
        model, x = images()
        compiled(model, optimizer)
        context.fit(model, x=x, y=np.zeros(ROWS), epochs=1, verbose=0, validate=False)
        assert "apply" not in vars(optimizer)
    assert reports(tmp_path) == []


def test_periodic_reports_have_norms_at_the_same_batches(tmp_path):
    with det.keras.init(config={**CONFIG, "scheduling_unit": 2}, run_dir=tmp_path) as context:
        model, x = images()
        compiled(model, keras.optimizers.SGD())
        context.fit(model, x=x, y=np.zeros(ROWS), batch_size=BATCH, epochs=1, verbose=0, validate=False)
    assert [report["batches"] for report in reports(tmp_path)] == [2, 4, 6]


def test_norms_of_a_loop_are_reported(tmp_path):
    layers = [keras.Input((4,)), keras.layers.Dense(1, name="dense")]
    model, optimizer = keras.Sequential(layers), keras.optimizers.SGD()
    data = tf.data.Dataset.from_tensor_slices((np.ones((8, 4), "float32"), np.ones((8, 1), "float32"))).batch(
        4
    )
    with det.keras.init(config=CONFIG, run_dir=tmp_path) as context:
        context.track(model=model, optimizer=optimizer)
        for _ in context.epochs(2):
            for x, y in context.batches(data):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - y) ** 2)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply(gradients, model.trainable_variables)
                context.report(loss=loss)
    found = reports(tmp_path)
    assert len(found) == 2
    assert found[-1]["gradient_norm/dense"] == pytest.approx(by_layer(model, gradients)["dense"], rel=1e-6)


class Variable:
    def __init__(self, path):
        self.path = path


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["dense/kernel", "dense/bias"], ["dense/kernel", "dense/bias"]),
        (["sequential/dense/kernel", "sequential/dense/bias"], ["dense/kernel", "dense/bias"]),
        (["a/dense/kernel", "b/dense/kernel"], ["a/dense/kernel", "b/dense/kernel"]),
        (["dense/kernel", "dense/kernel"], ["dense/kernel", "dense (2)/kernel"]),
        (["loose"], ["loose/loose"]),
    ],
)
def test_layers_are_told_apart_by_the_paths_of_their_variables(paths, names):
    assert variable_names([Variable(path) for path in paths]) == names
