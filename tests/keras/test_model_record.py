"""The recorded layers of a model: Keras itself is the oracle, and training is that of plain Keras."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import det_keras as det
from det_keras.keras import model_description
from det_keras.keras.model_description import describe_models

ROWS, FEATURES, CLASSES = 64, 6, 4
EVIL = "<img src=x onerror=alert(1)>"


def chain(names=("first", "second")):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(8, activation="relu", name=names[0]),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(CLASSES, name=names[1]),
        ]
    )


def deferred():
    return keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(CLASSES)])


def branches():
    layers = keras.layers
    inputs = keras.Input((FEATURES,), name="in")
    left = layers.Dense(5, name="left")(inputs)
    right = layers.Dense(5, name="right", trainable=False)(inputs)
    # An operation that is no layer.
    merged = layers.Concatenate(name="merge")([left, right]) * 0.5
    return keras.Model(inputs, layers.Dense(CLASSES, name="out")(merged))


def nested():
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(FEATURES)(inputs)
    return keras.Model(inputs, chain()(branches_body()(hidden)))


def branches_body():
    inputs = keras.Input((FEATURES,))
    return keras.Model(
        inputs, keras.layers.Add()([keras.layers.Dense(FEATURES)(inputs), inputs]), name="block"
    )


def shared():
    inputs = keras.Input((FEATURES,))
    layer = keras.layers.Dense(FEATURES, name="twice")
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(layer(layer(inputs))))


@keras.saving.register_keras_serializable("model_record")
class Block(keras.layers.Layer):
    """A layer that holds layers, and one whose shape only its `call` knows."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = keras.layers.Dense(8, name="inner")
        self.drop = keras.layers.Dropout(0.2)
        self.own = keras.layers.Lambda(lambda x: x * keras.random.uniform((), seed=3))

    def call(self, inputs, training=False):
        return self.own(self.drop(self.inner(inputs), training=training))


@keras.saving.register_keras_serializable("model_record")
class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.block = Block(name="block")
        self.rnn = keras.layers.LSTM(3, name="rnn")
        self.out = keras.layers.Dense(CLASSES, name="out")
        self.unused = keras.layers.Dense(7, name="unused")

    def call(self, inputs, training=False):
        hidden = self.block(inputs, training=training)
        return self.out(self.rnn(hidden[:, None, :]))


MODELS = {
    "sequential": chain,
    "deferred": deferred,
    "branches": branches,
    "nested": nested,
    "shared": shared,
    "subclassed": Subclassed,
}


def compiled(model):
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def data():
    random = np.random.default_rng(0)
    return random.random((ROWS, FEATURES), dtype="float32"), random.integers(0, CLASSES, ROWS)


def recorded(context):
    """Return the list of the models that a context reports from now on, as a master would receive them."""
    found: list[dict] = []
    backend = context.core.backend
    backend.report_provenance = lambda make: found.append(json.loads(json.dumps(make()["model"])))
    return found


def trained(make, run_dir, *, fits=1, epochs=2, records=True):
    keras.backend.clear_session(free_memory=False)
    x, y = data()
    with det.keras.init(run_dir=run_dir, seed=5) as context:
        found = recorded(context) if records else []
        model = compiled(make())
        for _ in range(fits):
            context.fit(
                model, x=x, y=y, batch_size=16, epochs=epochs, verbose=0, validate=False, shuffle=False
            )
    return model, found


def state(model):
    return [np.asarray(variable) for variable in [*model.variables, *model.optimizer.variables]]


def flat(entries, depth=0):
    for entry in entries:
        yield entry, depth
        yield from flat(entry.get("layers", []), depth + 1)


def shape_text(shapes):
    def single(shape):
        return f"({', '.join(str(size) for size in shape)})"

    return single(shapes[0]) if len(shapes) == 1 else "?"


def rows_of_summary(model):
    """Return name, class, shape and parameters of each row that Keras prints, without nested ones."""
    lines: list[str] = []
    model.summary(line_length=300, print_fn=lines.append)
    rows = []
    for line in "\n".join(lines).splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if len(cells) >= 3:
            name, _, kind = cells[0].rpartition(" (")
            rows.append((name, kind.rstrip(")"), cells[1], cells[2], cells[3] if len(cells) > 3 else ""))
    return rows


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """A summary leaves out what does not fit."""
    monkeypatch.setenv("COLUMNS", "300")


@pytest.mark.parametrize("name", MODELS)
def test_recording_leaves_training_as_plain_keras_does_it(name, tmp_path):
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    x, y = data()
    plain = compiled(MODELS[name]())
    plain.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    model, found = trained(MODELS[name], tmp_path / "run")
    assert len(found) == 1
    assert [each.path for each in model.variables] == [each.path for each in plain.variables]
    for mine, keras_own in zip(state(model), state(plain), strict=True):
        np.testing.assert_array_equal(mine, keras_own)


@pytest.mark.parametrize("name", MODELS)
def test_totals_are_those_of_keras(name, tmp_path):
    model, (record,) = trained(MODELS[name], tmp_path / "run")
    count = sum(math.prod(each.shape) for each in model.trainable_weights)
    assert record["trainable"] == count
    assert record["trainable"] + record["frozen"] == model.count_params()
    assert record["bytes"] == sum(np.asarray(each).nbytes for each in model.weights)
    assert (record["name"], record["class"]) == (model.name, type(model).__name__)
    assert record["count"] == sum(1 for _ in flat(record["layers"]))
    assert not record["isCut"]


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"subclassed"}))
def test_layers_are_the_rows_of_the_summary(name, tmp_path):
    model, (record,) = trained(MODELS[name], tmp_path / "run")
    mine = [
        (each["name"], each["class"], shape_text(each["shapes"]), f"{each['trainable'] + each['frozen']:,}")
        for each in record["layers"]
    ]
    assert mine == [row[:4] for row in rows_of_summary(model)]


def test_subclassed_model_has_its_layers_in_order(tmp_path):
    model, (record,) = trained(Subclassed, tmp_path / "run")
    layers = {entry["name"]: entry for entry, _ in flat(record["layers"])}
    assert record["kind"] == "layers"
    assert [entry["name"] for entry in record["layers"]] == [layer.name for layer in model.layers]
    assert [entry["name"] for entry in layers["block"]["layers"]][:2] == ["inner", "dropout"]
    for layer in model.layers:
        assert layers[layer.name]["trainable"] + layers[layer.name]["frozen"] == sum(
            math.prod(each.shape) for each in layer.weights
        )
    assert layers["out"]["shapes"][0][-1] == CLASSES
    assert layers["rnn"]["shapes"][0][-1] == 3
    # What only calling the layer would say, or a layer of the script, is unknown.
    assert layers["lambda"]["shapes"] == layers["block"]["shapes"] == layers["unused"]["shapes"] == []
    assert all(entry["inputs"] == [] for entry in layers.values())


def test_connections_are_those_of_the_summary(tmp_path):
    for name in ("branches", "shared"):
        model, (record,) = trained(MODELS[name], tmp_path / name)
        names = [entry["name"] for entry in record["layers"]]
        for entry, row in zip(record["layers"], rows_of_summary(model), strict=True):
            expected = {part.partition("[")[0] for part in row[4].split(", ")} - {"-"}
            assert {names[index] for index in entry["inputs"]} == expected, entry["name"]
    # A layer that receives its own output.
    assert record["layers"][names.index("twice")]["inputs"] == [names.index("in") if "in" in names else 0, 1]


def test_nested_models_are_groups_with_connections_of_their_own(tmp_path):
    _, (record,) = trained(nested, tmp_path / "run")
    groups = {entry["class"]: entry for entry in record["layers"] if "layers" in entry}
    assert groups["Functional"]["kind"] == "functional"
    assert [entry["inputs"] for entry in groups["Functional"]["layers"]] == [[], [0], [1, 0]]
    assert groups["Sequential"]["kind"] == "sequential"
    assert [entry["inputs"] for entry in groups["Sequential"]["layers"]] == [[], [0], [1], [2]]
    assert [entry["inputs"] for entry in record["layers"]] == [[], [0], [1], [2]]


def test_frozen_weights_are_told_from_trained_ones():
    record = describe_models([branches()])
    layers = {entry["name"]: entry for entry in record["layers"]}
    weights = FEATURES * 5 + 5
    assert (layers["left"]["trainable"], layers["left"]["frozen"]) == (weights, 0)
    assert (layers["right"]["trainable"], layers["right"]["frozen"]) == (0, weights)
    assert record["frozen"] == weights


def test_same_model_is_reported_once_and_a_process_that_resumes_reports_the_same(tmp_path):
    _, found = trained(chain, tmp_path / "run", fits=3)
    assert len(found) == 1
    _, again = trained(chain, tmp_path / "other", fits=1)
    assert again == found


def test_local_run_keeps_its_model_beside_its_place_and_a_resume_the_newest(tmp_path):
    def kept():
        record = json.loads((tmp_path / "run" / "provenance.json").read_text())
        assert record["directory"] == str(Path.cwd())
        assert record["keras"] == keras.__version__
        return record["model"]

    model, _ = trained(chain, tmp_path / "run", records=False)
    assert kept() == json.loads(json.dumps(describe_models([model])))
    with det.keras.init(run_dir=tmp_path / "run", seed=5):
        pass
    assert kept()["name"] == model.name


def test_record_is_turned_off_with_provenance(tmp_path, monkeypatch):
    monkeypatch.setenv("DET_KERAS_PROVENANCE", "0")
    _, found = trained(chain, tmp_path / "run")
    assert found == []
    assert not (tmp_path / "run" / "provenance.json").exists()


class Unreadable(keras.layers.Dense):
    """A layer that raises when its name is read for a description."""

    @property
    def name(self):
        if sys._getframe(1).f_globals["__name__"] == model_description.__name__:
            raise RuntimeError("not for others")
        return self._name

    @name.setter
    def name(self, value):
        self._name = value


def test_model_that_cannot_be_read_trains_without_a_record(tmp_path, caplog):
    caplog.set_level("INFO")
    model, found = trained(
        lambda: keras.Sequential([keras.Input((FEATURES,)), Unreadable(CLASSES)]), tmp_path / "run"
    )
    assert found == []
    assert "cannot be recorded: RuntimeError: not for others" in caplog.text
    assert model.optimizer.iterations.numpy() == 2 * ROWS // 16


def test_wide_and_deep_models_are_cut():
    many = keras.Model()
    many.parts = [keras.layers.ReLU() for _ in range(2100)]
    many.build((None, 2))
    record = describe_models([many])
    assert (record["count"], record["isCut"]) == (model_description.MOST_LAYERS, True)
    assert record["trainable"] + record["frozen"] == many.count_params()
    deep = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    for _ in range(20):
        deep = keras.Sequential([keras.Input((2,)), deep])
    record = describe_models([deep])
    assert record["isCut"]
    assert max(depth for _, depth in flat(record["layers"])) == model_description.MOST_DEPTH


def test_record_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(model_description, "MOST_BYTES", 600)
    record = describe_models([chain((EVIL, "n" * 100))])
    assert (record["layers"], record["isCut"]) == ([], True)
    assert record["count"] == 4


def test_names_are_kept_as_they_are_and_bounded():
    record = describe_models([chain((EVIL, "n" * 1000))])
    names = [entry["name"] for entry in record["layers"]]
    assert names[0] == EVIL
    assert names[-1] == "n" * model_description.MOST_NAME


def test_mixed_precision_and_small_types_are_counted_in_bytes():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        record = describe_models([chain()])
        assert record["layers"][0]["dtype"] == "bfloat16"
        keras.config.set_dtype_policy("bfloat16")
        small = describe_models([chain()])
    finally:
        keras.config.set_dtype_policy("float32")
    assert record["bytes"] == 2 * small["bytes"]


def test_loop_reports_the_models_that_it_tracks(tmp_path):
    keras.backend.clear_session(free_memory=False)
    x, y = data()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with det.keras.init(run_dir=tmp_path / "run", seed=5) as context:
        found = recorded(context)
        models, optimizer = [chain(), deferred()], keras.optimizers.SGD(0.1)
        optimizer = context.wrap_optimizer(optimizer)
        context.track(first=models[0], second=models[1], optimizer=optimizer)
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
        for _ in context.epochs(2):
            for inputs, targets in context.batches(batches):
                with tf.GradientTape() as tape:
                    value = loss(targets, models[0](inputs) + models[1](inputs))
                variables = [*models[0].trainable_variables, *models[1].trainable_variables]
                optimizer.apply(tape.gradient(value, variables), variables)
                context.report(loss=value)
    (record,) = found
    assert record["kind"] == "models"
    assert [entry["kind"] for entry in record["layers"]] == ["sequential", "sequential"]
    assert record["trainable"] + record["frozen"] == sum(model.count_params() for model in models)
