"""`DeterminedCallback` beside a user's own `model.fit`: reports, checkpoints, pauses, warm starts."""

from __future__ import annotations

import json
import logging
import sys

import keras
import numpy as np
import pytest
import warm

import det_keras as det
from det_keras.errors import ModelMismatchError

SAMPLES, BATCH, STEPS = 24, 8, 3


class Batches(keras.utils.PyDataset):
    """Data whose order hangs on nothing but the epoch."""

    def __init__(self):
        super().__init__()
        rng = np.random.RandomState(1)
        self.x = rng.normal(size=(SAMPLES, 4)).astype("float32")
        self.y = (self.x[:, :1] > 0).astype("float32")

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


def network(units=3, optimizer=None, dropout=0.3):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dropout(dropout), keras.layers.Dense(1)]
    )
    model.compile(optimizer or keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def train(folder, epochs, *, checkpoint=None, continue_id="a", callbacks=(), model=None, **options):
    """Train alone in a run directory; return the model, the history, and the checkpoints, newest first."""
    model = model or network()
    with det.core.init(run_dir=folder) as core:
        managed = det.keras.DeterminedCallback(core, checkpoint, continue_id, **options)
        data = Batches()
        history = model.fit(
            data,
            validation_data=data,
            epochs=epochs,
            callbacks=[managed, *callbacks],
            verbose=0,
            shuffle=False,
        )
        return model, history, core.backend.checkpoints()


def reports(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["group"], row["steps_completed"], sorted(row["metrics"])) for row in rows]


def test_each_epoch_is_reported_and_saved(tmp_path):
    _, _, checkpoints = train(tmp_path, 2)
    training, validation = ["batches", "epochs", "loss", "mae"], ["batches", "epochs", "val_loss", "val_mae"]
    assert reports(tmp_path) == [
        ("training", 3, training), ("validation", 3, validation),
        ("training", 6, training), ("validation", 6, validation),
    ]  # fmt: skip
    assert [one.steps_completed for one in checkpoints] == [6, 3]


def test_training_metrics_come_by_batches(tmp_path):
    train(tmp_path, 2, train_metrics_report_period=2)
    assert [steps for group, steps, _ in reports(tmp_path) if group == "training"] == [2, 4, 6]


@pytest.mark.parametrize(("epochs", "saved"), [(0, [9]), (2, [9, 6])])
def test_checkpoints_come_as_often_as_asked_and_at_the_end(tmp_path, epochs, saved):
    _, _, checkpoints = train(tmp_path, 3, checkpoint_epochs=epochs)
    assert [one.steps_completed for one in checkpoints] == saved


def test_same_id_goes_on_after_the_epoch_with_the_same_weights(tmp_path):
    whole, history, _ = train(tmp_path / "whole", 4)
    _, _, checkpoints = train(tmp_path / "first", 2)
    model, rest, _ = train(
        tmp_path / "first", 4, checkpoint=checkpoints[0].uuid, model=network(), continue_id="a"
    )
    assert rest.epoch == [2, 3]
    assert rest.history["loss"] == history.history["loss"][2:]
    for one, other in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [steps for group, steps, _ in reports(tmp_path / "first") if group == "training"] == [3, 6, 9, 12]


def test_other_id_takes_the_weights_and_begins_at_epoch_0(tmp_path):
    trained, _, checkpoints = train(tmp_path, 2)

    class Seen(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 0:
                self.weights = self.model.get_weights()

    seen = Seen()
    _, history, _ = train(tmp_path, 1, checkpoint=checkpoints[0].uuid, continue_id="b", callbacks=[seen])
    assert history.epoch == [0]
    for one, other in zip(seen.weights, trained.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_initial_epoch_of_fit_has_no_effect(tmp_path):
    with det.core.init(run_dir=tmp_path) as core:
        managed = det.keras.DeterminedCallback(core, None, 1)
        history = network().fit(Batches(), epochs=3, initial_epoch=2, callbacks=[managed], verbose=0)
    assert history.epoch == [0, 1, 2]


def test_finished_training_trains_no_more(tmp_path):
    _, _, checkpoints = train(tmp_path, 2)
    _, history, again = train(tmp_path, 2, checkpoint=checkpoints[0].uuid)
    assert history.epoch == []
    assert [one.uuid for one in again] == [one.uuid for one in checkpoints]


def test_request_to_stop_is_obeyed_at_the_epochs_end(tmp_path):
    with det.core.init(run_dir=tmp_path) as core:

        class Asked(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                core.preempt._requested.set()

        managed = det.keras.DeterminedCallback(core, None, 1, checkpoint_epochs=0)
        history = network().fit(Batches(), epochs=5, callbacks=[managed, Asked()], verbose=0)
        assert [one.steps_completed for one in core.backend.checkpoints()] == [3]
    assert history.epoch == [0]


def test_model_is_saved_and_loaded_in_the_users_way(tmp_path):
    class Own(det.keras.DeterminedCallback):
        def save_model(self, model, path, distributed):
            assert distributed.rank == 0
            np.savez(f"{path}.mine.npz", *model.get_weights())

        def load_model(self, model, path, distributed):
            with np.load(f"{path}.mine.npz") as values:
                model.set_weights([values[name] for name in values.files])

    weights = []
    for epochs in (1, 2):
        with det.core.init(run_dir=tmp_path) as core:
            newest = next((one.uuid for one in core.backend.checkpoints()), None)
            model = network(dropout=0.0)
            model.fit(Batches(), epochs=epochs, callbacks=[Own(core, newest, 1)], verbose=0, shuffle=False)
            weights.append(model.get_weights())
    whole, _, _ = train(tmp_path / "whole", 2, model=network(dropout=0.0))
    for one, other in zip(weights[1], whole.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_weights_file_is_loaded_by_keras_alone(tmp_path):
    trained, _, checkpoints = train(tmp_path, 1)
    model = network()
    model.load_weights(tmp_path / "checkpoints" / checkpoints[0].uuid / "model_checkpoint.weights.h5")
    np.testing.assert_array_equal(model.get_weights()[0], trained.get_weights()[0])


def test_checkpoint_of_fit_gives_its_weights(tmp_path):
    keras.utils.clear_session(free_memory=False)
    with det.keras.init(run_dir=tmp_path / "fit") as context:
        fitted, data = network(), Batches()
        context.fit(fitted, data, validation_data=data, epochs=1, verbose=0)
        uuid = context.core.backend.checkpoints()[0].uuid
        storage = context.core.checkpoint.storage.root
    with det.core.init(run_dir=tmp_path / "own", checkpoint_storage=storage) as core:
        model = network()
        model.fit(Batches(), epochs=0, callbacks=[det.keras.DeterminedCallback(core, uuid, 1)], verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], fitted.get_weights()[0])


def test_other_model_or_optimizer_is_refused(tmp_path):
    _, _, checkpoints = train(tmp_path, 1)
    with pytest.raises(ModelMismatchError, match="do not fit this model"):
        train(tmp_path, 1, checkpoint=checkpoints[0].uuid, model=network(units=5))
    with pytest.raises(ModelMismatchError, match="optimizer"):
        train(tmp_path, 2, checkpoint=checkpoints[0].uuid, model=network(optimizer=keras.optimizers.SGD(0.1)))


@pytest.mark.parametrize(
    "options",
    [
        {"train_metrics_report_period": 0},
        {"train_metrics_report_period": "batch"},
        {"checkpoint_epochs": -1},
        {"checkpoint_epochs": 1.5},
    ],
)
def test_unusable_periods_are_refused(tmp_path, options):
    with det.core.init(run_dir=tmp_path) as core, pytest.raises(ValueError, match=next(iter(options))):
        det.keras.DeterminedCallback(core, None, 1, **options)


def test_something_else_than_a_core_context_is_refused():
    with pytest.raises(TypeError, match=r"det\.core\.init"):
        det.keras.DeterminedCallback(None, None, 1)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


@pytest.mark.parametrize(
    "make", [lambda: keras.Sequential([keras.layers.Dense(1)]), Subclassed], ids=["lazy", "subclass"]
)
def test_model_that_its_first_batch_builds_goes_on(tmp_path, make):
    def lazy():
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        model = make()
        model.compile("adam", "mse")
        return model

    whole, _, _ = train(tmp_path / "whole", 2, model=lazy())
    _, _, checkpoints = train(tmp_path / "parts", 1, model=lazy())
    model, history, _ = train(tmp_path / "parts", 2, checkpoint=checkpoints[0].uuid, model=lazy())
    assert history.epoch == [1]
    for one, other in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_batches_count_on_over_several_fits(tmp_path):
    with det.core.init(run_dir=tmp_path) as core:
        managed, model = det.keras.DeterminedCallback(core, None, 1), network()
        for _ in range(2):
            model.fit(Batches(), epochs=2, callbacks=[managed], verbose=0)
        assert [one.steps_completed for one in core.backend.checkpoints()] == [12, 9, 6, 3]
    assert [steps for _, steps, _ in reports(tmp_path)] == [3, 6, 9, 12]


def test_metric_with_a_value_for_each_class_is_reported(tmp_path, capsys):
    x, y = np.eye(4, dtype="float32"), np.eye(4, dtype="float32")
    keras.utils.clear_session(free_memory=False)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="softmax")])
    model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score(average=None, name="f1")])
    with det.core.init(run_dir=tmp_path / "own") as core:
        model.fit(
            x, y, validation_data=(x, y), verbose=1, callbacks=[det.keras.DeterminedCallback(core, None, 1)]
        )
    with det.keras.init(run_dir=tmp_path / "fit") as context:
        context.fit(model, x, y, validation_data=(x, y), verbose=0)
    for folder in ("own", "fit"):
        rows = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        assert [len(row["metrics"].get("f1") or row["metrics"]["val_f1"]) for row in rows] == [4, 4]
    assert "f1: [" in capsys.readouterr().out


def test_lines_take_the_place_of_the_progress_bar(tmp_path, capsys):
    with det.core.init(run_dir=tmp_path) as core:
        network().fit(Batches(), epochs=1, callbacks=[det.keras.DeterminedCallback(core, None, 1)], verbose=1)
    printed = capsys.readouterr().out
    assert printed.startswith("epoch 1/1: loss: ")
    assert "\r" not in printed
    assert "━" not in printed


def test_validations_and_predictions_outside_of_training_are_left_alone(tmp_path):
    with det.core.init(run_dir=tmp_path) as core:
        managed, model = det.keras.DeterminedCallback(core, None, 1), network()
        model.evaluate(Batches(), callbacks=[managed], verbose=0)
        model.predict(Batches().x, callbacks=[managed], verbose=0)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_tensorboard_writes_where_the_run_keeps_its_events(tmp_path, caplog):
    pytest.importorskip("tensorboard")
    with det.core.init(run_dir=tmp_path) as core:
        board = det.keras.TensorBoard(core, log_dir="elsewhere", update_freq="batch")
        managed = det.keras.DeterminedCallback(core, None, 1)
        network().fit(Batches(), epochs=1, callbacks=[managed, board], verbose=0)
    found = {path.parent.name for path in (tmp_path / "tensorboard").rglob("events*")}
    assert found >= {"train", "training"}


MIRRORED = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf, numpy as np, keras
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
import det_keras as det
folder, epochs = sys.argv[1], int(sys.argv[2])
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
keras.utils.set_random_seed(1)
x = np.arange(64, dtype="float32").reshape(16, 4) / 64
with det.core.init(run_dir=folder) as core:
    newest = next((one.uuid for one in core.backend.checkpoints()), None)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
    history = model.fit(data, epochs=epochs, verbose=0, callbacks=[det.keras.DeterminedCallback(core, newest, 1)])
print(history.epoch, [float(v).hex() for v in np.concatenate([w.ravel() for w in model.get_weights()])])
"""


@pytest.mark.process
def test_mirrored_strategy_goes_on_with_the_same_weights(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(MIRRORED)

    def run(folder, epochs):
        done = warm.run(
            [sys.executable, script, tmp_path / folder, str(epochs)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()[-1]

    whole = run("whole", 3)
    assert run("parts", 1).startswith("[0] ")
    assert run("parts", 3) == whole.replace("[0, 1, 2]", "[1, 2]")


def test_several_workers_of_tensorflow_are_pointed_to_the_launcher(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}}))
    with pytest.raises(det.errors.DetError, match=r"2 workers.*det_keras\.launch\.distributed"):
        det.core.DistributedContext.from_tf_config()
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(det.errors.DetError, match="no JSON"):
        det.core.DistributedContext.from_tf_config()


def test_one_worker_gets_a_strategy(monkeypatch, caplog):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with caplog.at_level(logging.WARNING):
        distributed, strategy = det.core.DistributedContext.from_tf_config()
    assert distributed.size == strategy.num_replicas_in_sync == 1
