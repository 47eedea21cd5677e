"""What `fit` promises besides exact resume: arguments, callbacks, reports, checkpoints."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import warm
import yaml
from kinds import BATCH, STEPS, Batches, arrays, network

import det_keras as det
from det_keras.cluster_info import get_cluster_info
from det_keras.errors import DetError, ModelMismatchError
from det_keras.keras import FitHistory
from det_keras.keras.training.phase import check_signature, phase_signature


@pytest.fixture
def context(tmp_path):
    keras.backend.clear_session(free_memory=False)
    with det.keras.init(run_dir=tmp_path / "run", seed=1, hparams={"a": {"b": 1}}) as context:
        yield context


def fit(context, model, *callbacks, **options):
    x, y = arrays()
    return context.fit(
        model,
        x,
        y,
        batch_size=BATCH,
        validation_data=(x[:16], y[:16]),
        verbose=0,
        callbacks=list(callbacks),
        **options,
    )


def reports(context):
    return [json.loads(line) for line in context.core.backend.run.metrics.read_text().splitlines()]


class Events(keras.callbacks.Callback):
    """Logs what a user's callback sees."""

    def __init__(self):
        super().__init__()
        self.log = []

    def on_train_begin(self, logs=None):
        self.log.append("train_begin")

    def on_train_end(self, logs=None):
        self.log.append("train_end")

    def on_epoch_begin(self, epoch, logs=None):
        self.log.append(f"epoch_begin {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.log.append(f"epoch_end {epoch} {'val_loss' in logs}")

    def on_train_batch_end(self, batch, logs=None):
        self.log.append(batch)

    def on_test_begin(self, logs=None):
        self.log.append("test_begin")


def test_hooks_set_on_a_callback_object_are_called(context):
    seen = []
    hooks = {
        "on_train_batch_begin": lambda batch, logs: seen.append(f"begin {batch}"),
        "on_train_batch_end": lambda batch, logs: seen.append(f"end {batch}"),
    }
    fit(context, network(optimizer="adam"), keras.callbacks.LambdaCallback(**hooks), epochs=1)
    assert seen == [f"{name} {batch}" for batch in range(STEPS) for name in ("begin", "end")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs validation data"),
        ({"validation_split": 0.2, "on_nan": "explode"}, "on_nan"),
        ({"validation_split": 0.2, "epochs": -1}, "epochs"),
        ({"validation_split": 0.2, "class_weight": {0: 1.0}, "sample_weight": np.ones(88)}, "together"),
        ({"validation_split": 0.2, "callbacks": ["x"]}, "Callback"),
        ({"validation_split": 0.9999}, "leaves one side"),
    ],
    ids=str,
)
def test_unusable_arguments_are_refused_before_training(context, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        context.fit(network(optimizer="adam"), *arrays(), **options)


def test_numbers_without_a_meaning_are_refused_with_their_value(context):
    model = network(optimizer="adam")
    refused = [
        *((name, value, value) for name in ("batch_size", "steps_per_epoch", "validation_steps",
          "validation_batch_size", "validation_freq") for value in (0, -1, 2.0, True)),
        *((name, value, value) for name in ("epochs", "initial_epoch") for value in (-1, 2.0, None)),
        ("validation_freq", (1, 0), 0), ("validation_freq", "ab", "a"), ("shuffle", "bach", "bach"),
    ]  # fmt: skip
    for name, value, shown in refused:
        with pytest.raises(ValueError, match=f"`{name}` .*Received: {re.escape(repr(shown))}"):
            context.fit(model, *arrays(), validation_split=0.2, **{name: value})
    assert context._script.phases == []


def test_numpys_numbers_are_as_good_as_pythons(context):
    """They used to train, and then to fail the checkpoint: JSON knows none of them."""
    x, y = arrays()
    numbers = {
        "epochs": 2, "initial_epoch": 0, "steps_per_epoch": 3, "validation_steps": 1, "validation_freq": 2,
        "validation_batch_size": 8, "batch_size": context.distributed.shard_batch_size(np.int64(4)),
    }  # fmt: skip
    options = {name: np.int64(value) for name, value in numbers.items()}
    history = context.fit(
        network(optimizer="adam"), x, y, validation_split=0.2, shuffle=np.True_, verbose=0, **options
    )
    assert (history.epoch, len(history.history["val_loss"])) == ([0, 1], 1)
    assert len(list(context.core.backend.run.checkpoints.glob("*/manifest.json"))) > 0
    assert type(context.distributed.shard_batch_size(np.int64(4))) is int


def test_every_truthy_shuffle_shuffles_as_in_keras(context):
    def order(shuffle):
        seen = []
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        x = np.arange(8, dtype="float32")[:, None]
        look = model.train_step
        model.train_step = lambda data: (seen.append(data[0].numpy()[:, 0].tolist()), look(data))[1]
        context.fit(model, x, x, batch_size=8, shuffle=shuffle, validation_data=(x, x), verbose=0)
        return seen

    assert order(0) == order(None) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert order(1) != order(0)


def test_generator_functions_are_refused_with_what_to_use_instead(context):
    def generate():
        yield from ()

    with pytest.raises(TypeError, match="PyDataset"):
        context.wrap_data(generate)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.ones((3, 2)), np.ones(4)), r"\[3, 4\]"),
        ((np.ones((0, 2)), np.ones(0)), "empty"),
        (({"a": np.ones(3), "b": np.ones(5)},), r"\[3, 5\]"),
    ],
    ids=["lengths", "empty", "nested"],
)
def test_unusable_arrays_are_refused(context, data, message):
    with pytest.raises(ValueError, match=message):
        context.wrap_data(*data)


def test_wrapping_changes_nothing_on_one_worker(context):
    x, y = arrays()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    assert context.wrap_data(dataset) is dataset
    assert context.data.wrap(x) is x
    assert context.wrap_data(x, y) == (x, y)
    optimizer = keras.optimizers.Adam()
    assert context.wrap_optimizer(optimizer) is optimizer


def test_string_optimizer_is_refused_with_the_object_to_pass(context):
    with pytest.raises(TypeError, match=r"keras\.optimizers\.RMSprop\(\)"):
        context.wrap_optimizer("rmsprop")


def test_missing_hyperparameter_lists_those_that_there_are(context):
    assert context.training.hparams["a"]["b"] == 1
    with pytest.raises(KeyError, match=r"learning_rate.*there are: 'a'"):
        context.training.hparams["learning_rate"]


def test_callbacks_see_one_training_with_true_numbers(context):
    events = Events()
    fit(context, network(optimizer="adam"), events, epochs=2)
    epoch = [*range(STEPS), "test_begin"]
    assert events.log == [
        "train_begin",
        "epoch_begin 0",
        *epoch,
        "epoch_end 0 True",
        "epoch_begin 1",
        *epoch,
        "epoch_end 1 True",
        "train_end",
    ]


def test_history_is_that_of_plain_keras(context):
    keras.utils.set_random_seed(1)
    plain = network(optimizer="sgd").fit(
        *arrays(),
        batch_size=BATCH,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(arrays()[0][:16], arrays()[1][:16]),
    )
    keras.utils.set_random_seed(1)
    keras.backend.clear_session(free_memory=False)
    ours = fit(context, network(optimizer="sgd"), epochs=2, shuffle=False)
    assert ours.history == plain.history
    assert ours.epoch == plain.epoch
    assert isinstance(ours, keras.callbacks.History)


def test_score_answers_short_names(context):
    history = fit(context, network(optimizer="adam"), epochs=1)
    assert history.score["val_acc"] == history.history["val_accuracy"]
    assert set(history.score) == {"val_accuracy", "val_loss"}
    with pytest.raises(KeyError, match="val_loss"):
        history.score["val_auc"]


def test_score_answers_keras_two_names_of_an_error():
    history = FitHistory()
    history.history = {"val_mean_squared_error": [1.0], "val_mae": [2.0], "mse": [3.0]}
    for name in ("mse", "val_mse", "mean_squared_error", "val_mean_squared_error"):
        assert history.score[name] == [1.0]
    assert "mean_absolute_error" in history.score
    assert history.score["val_mean_absolute_error"] == [2.0]
    assert "mape" not in history.score


def test_frame_of_a_history_is_that_of_keras(context, monkeypatch):
    history = fit(context, network(optimizer="adam"), epochs=3)
    frame = history.to_frame()
    expected = pd.DataFrame(history.history, index=pd.Index(history.epoch, name="epoch"))
    pd.testing.assert_frame_equal(frame, expected, check_exact=True)
    assert frame.index.tolist() == [0, 1, 2]
    assert {"loss", "val_loss"} <= set(frame.columns)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DetError, match="pip install pandas"):
        history.to_frame()


def test_frame_of_a_history_has_gaps_where_no_validation_was(context):
    history = fit(context, network(optimizer="adam"), epochs=5, validation_freq=[2, 3, 5])
    restored = FitHistory()
    restored.load_state(json.loads(json.dumps(history.get_state())))
    for frame in (history.to_frame(), restored.to_frame()):
        assert frame.index.tolist() == [0, 1, 2, 3, 4]
        assert frame["val_loss"].isna().tolist() == [True, False, False, True, False]
        assert frame["val_loss"].dropna().tolist() == history.history["val_loss"]
        assert frame["loss"].tolist() == history.history["loss"]


def test_frame_of_a_history_keeps_integers_and_nan():
    history = FitHistory()
    history.epoch = [0, 1]
    history.history = {
        "count": [1, 2],
        "loss": [np.float32(0.5), math.nan],
        "val_count": [np.int64(2**60 + 1)],
    }
    frame = history.to_frame()
    assert [str(kind) for kind in frame.dtypes] == ["int64", "float64", "Int64"]
    assert frame["val_count"][1] == 2**60 + 1
    assert math.isnan(frame["loss"][1])


def test_hyperparameters_are_written_as_yaml(context):
    for dump in (yaml.safe_dump, yaml.dump):
        assert dump(context.training.hparams) == "a:\n  b: 1\n"


def test_metrics_are_reported_once_an_epoch_with_counters(context):
    fit(context, network(optimizer="adam"), epochs=2)
    rows = {(row["group"], row["steps_completed"]): row["metrics"] for row in reports(context)}
    assert sorted(rows) == [("training", 11), ("training", 22), ("validation", 11), ("validation", 22)]
    assert rows["validation", 22]["batches"] == 22
    assert rows["validation", 22]["epochs"] == 2
    assert rows["validation", 22]["records"] == 176
    assert "val_accuracy" in rows["validation", 22]
    assert "loss" in rows["training", 11]


def test_reports_hold_all_metrics_with_the_values_of_kerass_history(context):
    history = fit(context, network(optimizer="adam"), epochs=2).history
    rows = {(row["group"], row["steps_completed"]): row["metrics"] for row in reports(context)}
    besides = {"batches", "epochs", "records", "learning_rate"}
    for epoch in range(2):
        reported = {**rows["training", STEPS * (epoch + 1)], **rows["validation", STEPS * (epoch + 1)]}
        assert {name: reported[name] for name in reported.keys() - besides} == {
            name: pytest.approx(values[epoch], rel=0, abs=0) for name, values in history.items()
        }


def test_metrics_are_written_as_tensorboard_events(context):
    fit(context, network(optimizer="adam"), epochs=2)
    found = {}
    for group in ("training", "validation"):
        (path,) = (context.core.backend.run.tensorboard / group).glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault((group, value.tag), []).append(event.step)
    assert found["training", "loss"] == [11, 22]
    assert found["validation", "val_loss"] == [11, 22]


def test_config_periods_rule_reports_validations_and_checkpoints(tmp_path):
    keras.backend.clear_session(free_memory=False)
    config = {
        "scheduling_unit": 5,
        "min_validation_period": {"batches": 4},
        "checkpoint_policy": "all",
        "perform_initial_validation": True,
    }
    events = Events()
    with det.keras.init(config=config, run_dir=tmp_path, seed=1) as context:
        history = fit(context, network(optimizer="adam"), events, epochs=1)
        rows = [(row["group"], row["steps_completed"]) for row in reports(context)]
    assert [steps for group, steps in rows if group == "training"] == [5, 10, 11]
    assert [steps for group, steps in rows if group == "validation"] == [0, 4, 8, 11]
    assert len(history.history["val_loss"]) == 1
    assert [event for event in events.log if str(event).startswith("epoch_end")] == ["epoch_end 0 True"]


def test_mid_epoch_validation_changes_nothing(tmp_path):
    digests = []
    for name, config in (("a", {}), ("b", {"min_validation_period": {"batches": 3}})):
        keras.backend.clear_session(free_memory=False)
        with det.keras.init(config=config, run_dir=tmp_path / name, seed=1) as context:
            model = network(optimizer="adam")
            history = fit(context, model, epochs=2)
            digests.append((history.history, [weight.tolist() for weight in model.get_weights()]))
    assert digests[0] == digests[1]


def test_second_init_returns_the_same_context_or_says_what_to_do(context, tmp_path):
    assert det.keras.init(run_dir=tmp_path / "run", seed=1, hparams={"a": {"b": 1}}) is context
    with pytest.raises(DetError, match=r"context\.close\(\)"):
        det.keras.init(seed=2)

    assert det.keras.init() is context


def test_arguments_are_ignored_where_the_master_says_what_they_are(tmp_path, monkeypatch, caplog):
    job = {"TASK_TYPE": "GENERIC", "MASTER": "http://127.0.0.1:1", "SLOT_IDS": "[0]", "TASK_ID": "t",
           "ALLOCATION_ID": "t.1", "SESSION_TOKEN": "secret"}  # fmt: skip
    for name, value in job.items():
        monkeypatch.setenv(f"DET_{name}", value)
    # As in a process that has not set up logging.
    logging.getLogger("det_keras").setLevel(logging.NOTSET)
    get_cluster_info.cache_clear()
    try:
        with det.keras.init(seed=5) as context:
            assert "arguments of init() are ignored" in caplog.text
            assert det.keras.init(run_dir=tmp_path, hparams={"a": 1}) is context
    finally:
        monkeypatch.undo()
        get_cluster_info.cache_clear()


def test_runs_without_a_seed_draw_different_ones(tmp_path):
    seeds = set()
    for name in ("one", "two", "three"):
        with det.keras.init(run_dir=tmp_path / name) as context:
            seeds.add(context.seed)
    assert len(seeds) == 3


def test_notices_of_the_config_are_logged(tmp_path, caplog):
    with det.keras.init(config={"optimizations": {"auto_tune_tensor_fusion": True}}, run_dir=tmp_path):
        pass
    assert "`optimizations.auto_tune_tensor_fusion` has no effect here." in caplog.messages


@pytest.mark.parametrize("seed", [-1, 2**32, "7", 1.5, True])
def test_unusable_seed_is_refused_before_the_run_directory_keeps_it(tmp_path, seed):
    with pytest.raises(ValueError, match=f"`seed` .*Received: {seed!r}"):
        det.keras.init(run_dir=tmp_path, seed=seed)
    assert not list(tmp_path.iterdir())


def test_search_space_alone_is_sampled_once_and_said(tmp_path, caplog):
    drawn = {"type": "double", "minval": 0.1, "maxval": 0.2}
    space = {"lr": drawn, "rate": drawn, "units": 3}
    config = {"hyperparameters": space}
    with det.keras.init(config=config, hparams={"rate": 9.0}, seed=np.int64(3)) as context:
        assert 0.1 <= context.training.hparams["lr"] <= 0.2
        assert context.training.hparams["rate"] == 9.0
        assert type(context.seed) is int
    (said,) = (record.getMessage() for record in caplog.records if "search space" in record.getMessage())
    assert said.endswith(f"uses one sample of it: {{'lr': {context.training.hparams['lr']!r}}}")


def test_run_that_goes_on_says_from_which_checkpoint(tmp_path):
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        assert context.training.latest_checkpoint is None
        fit(context, network(optimizer="adam"), epochs=2)
        newest = context.core.backend.checkpoints()[0].uuid
    with det.keras.init(run_dir=tmp_path) as context:
        assert context.training.latest_checkpoint == newest


def test_backup_and_restore_is_left_out(context, tmp_path, caplog):
    fit(context, network(optimizer="adam"), keras.callbacks.BackupAndRestore(tmp_path / "backup"), epochs=1)
    assert "BackupAndRestore is left out" in caplog.text
    assert not (tmp_path / "backup").exists()


def test_nan_loss_is_said_once_or_ends_the_trial(context, caplog):
    x, y = arrays()
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    bad = np.full_like(x, np.nan)
    context.fit(model, bad, y, validation_split=0.2, epochs=2, verbose=0)
    assert caplog.text.count("The loss is nan") == 1
    with pytest.raises(det.InvalidHP, match="nan"):
        context.fit(model, bad, y, validation_split=0.2, epochs=1, verbose=0, on_nan="stop")


def test_checkpoint_opens_without_this_package_and_predicts_the_same(context, tmp_path):
    x, _ = arrays()
    model = network(optimizer="adam")
    fit(context, model, epochs=1)
    (record,) = context.core.backend.checkpoints()
    path = context.core.checkpoint.storage.root / record.uuid / "model.keras"
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, keras, numpy as np\n"
        f"model = keras.models.load_model({str(path)!r})\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, model.predict(np.load({str(tmp_path / 'x.npy')!r}), verbose=0))\n"
        "assert 'det_keras' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), model.predict(x, verbose=0))
    assert set(zipfile.ZipFile(path).namelist()) == {"metadata.json", "config.json", "model.weights.h5"}
    loaded = context.load_checkpoint_model(checkpoint_uuid=record.uuid)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


def test_metadata_says_what_the_checkpoint_is(context):
    fit(context, network(optimizer="adam"), epochs=1)
    (record,) = context.core.backend.checkpoints()
    assert record.metadata["steps_completed"] == STEPS
    assert record.metadata["framework"].startswith("tensorflow-")
    assert "val_loss" in record.metadata["metrics"]
    assert {"model.keras", "training_state/state.json", "training_state/variables.bin"} <= set(
        record.resources
    )


def resumed(tmp_path, change):
    """Train one epoch, then go on in the same run directory with something changed."""
    for attempt in range(2):
        keras.backend.clear_session(free_memory=False)
        with det.keras.init(run_dir=tmp_path, seed=1) as context:
            options = {"batch_size": BATCH, "epochs": 3, "validation_split": 0.1, "verbose": 0}
            x, y = arrays()
            units = [8, 2]
            if attempt:
                x, y, units, options = change(x, y, units, options)
            model = keras.Sequential([keras.Input((6,)), *map(keras.layers.Dense, units)])
            model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            stop = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: 1 / (1 - epoch))
            try:
                context.fit(model, x, y, callbacks=[stop], **options)
            except ZeroDivisionError:
                assert not attempt


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, units, o: (x, y, [9, 2], o), r"\(6, 8\).*\(6, 9\)"),
        (lambda x, y, units, o: (x, y, [8, 2, 2], o), "trainable variables"),
        (lambda x, y, units, o: (x, y, units, {**o, "batch_size": 4}), "batch size of 8.*asks for 4"),
        (lambda x, y, units, o: (x, y, units, {**o, "epochs": 5}), "`epochs` was 3 and is 5"),
        (lambda x, y, units, o: (x[:50], y[:50], units, o), "samples"),
    ],
    ids=["shape", "layer", "batch size", "epochs", "data"],
)
def test_changed_script_is_refused_naming_the_change(tmp_path, change, message):
    with pytest.raises(ModelMismatchError, match=message):
        resumed(tmp_path, change)


def test_numbers_of_automatic_names_alone_are_said_to_be_that():
    saved, again, other = (
        phase_signature(epochs=1, initial_epoch=0, data={}, trainable=paths)
        for paths in (
            ["dense/kernel", "a_2/bias_1"],
            ["dense_1/kernel", "a_3/bias_1"],
            ["dense_1/kernel", "b/bias"],
        )
    )
    with pytest.raises(ModelMismatchError, match=r"'dense_1/kernel'.*keras\.utils\.clear_session\(\)"):
        check_signature(0, saved, again)
    with pytest.raises(ModelMismatchError, match="start from the beginning"):
        check_signature(0, saved, other)


def test_corrupt_newest_checkpoint_gives_way_to_the_one_before(tmp_path, caplog):
    keras.backend.clear_session(free_memory=False)
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        fit(context, network(optimizer="adam"), epochs=3)
        newest = context.core.backend.checkpoints()[0]
        path = context.core.checkpoint.storage.root / newest.uuid / "training_state" / "variables.bin"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    keras.backend.clear_session(free_memory=False)
    events = Events()
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        history = fit(context, network(optimizer="adam"), events, epochs=3)
    assert newest.uuid in caplog.text
    assert "variables.bin" in caplog.text
    assert events.log[1] == "epoch_begin 2"
    assert len(history.history["loss"]) == 3


def test_evaluate_returns_a_dict_and_reports_once(context):
    x, y = arrays()
    model = network(optimizer="adam")
    fit(context, model, epochs=1)
    metrics = context.evaluate(model, x, y)
    assert set(metrics) == {"loss", "accuracy"}
    assert ("test", STEPS) in [(row["group"], row["steps_completed"]) for row in reports(context)]
    with pytest.raises(ValueError, match="already"):
        context.evaluate(model, x, y, report="validation")
    assert context.predict(model, x).shape == (len(x), 2)


def test_validation_data_that_turns_out_empty_is_said_so(context):
    empty = tf.data.Dataset.from_tensor_slices(arrays()).batch(8).filter(lambda *batch: False)
    with pytest.raises(ValueError, match="empty: not one batch"):
        context.fit(network(optimizer="adam"), *arrays(), validation_data=empty, verbose=0)


def test_pydataset_hooks_run_as_often_as_in_plain_keras(context):
    """Once an epoch, and Keras calls `on_epoch_end` once before the first."""
    data, validation, plain, plain_validation = (Batches() for _ in range(4))
    context.fit(network(optimizer="adam"), data, validation_data=validation, epochs=3, verbose=0)
    network(optimizer="adam").fit(plain, validation_data=plain_validation, epochs=3, verbose=0)
    assert (data.epoch, validation.epoch) == (plain.epoch, plain_validation.epoch)


def test_stopping_callback_ends_training_for_good(tmp_path):
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(stop.model, "stop_training", True)
    )
    for _ in range(2):
        keras.backend.clear_session(free_memory=False)
        with det.keras.init(run_dir=tmp_path, seed=1) as context:
            assert fit(context, network(optimizer="adam"), stop, epochs=5).epoch == [0]


@pytest.mark.parametrize("average", [True, False])
def test_aggregation_frequency_updates_once_in_so_many_batches(tmp_path, average):
    weights = []
    for frequency, batch_size in ((1, 16), (2, 8)):
        keras.backend.clear_session(free_memory=False)
        config = {
            "optimizations": {"aggregation_frequency": frequency, "average_aggregated_gradients": average},
        }
        with det.keras.init(config=config, run_dir=tmp_path / str(frequency), seed=1) as context:
            x, y = arrays()
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            rate = 0.1 if average or frequency == 2 else 0.2
            model.compile(optimizer=context.wrap_optimizer(keras.optimizers.SGD(rate)), loss="mse")
            context.fit(
                model, x[:80], y[:80], batch_size=batch_size, shuffle=False, validation_split=0.2, verbose=0
            )
            weights.append(model.get_weights()[0])
    # Two halves of a batch are summed in another order than the whole batch.
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-5)


def test_load_of_the_machine_and_of_the_training_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 0.2)
    keras.backend.clear_session(free_memory=False)
    slow = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: arrived.wait(10))
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        arrived = _Arrived(tmp_path / "system.jsonl")
        fit(context, network(optimizer="adam"), slow, epochs=1)
    rows = [json.loads(line) for line in (tmp_path / "system.jsonl").read_text().splitlines()]
    load = {row["group"]: row["metrics"] for row in rows}
    assert 0 <= load["cpu"]["cpu_util_trial"] <= 100
    # TensorFlow alone takes more.
    assert load["memory"]["memory_trial_bytes"] > 100 << 20


def test_load_is_not_sampled_if_the_config_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 0.02)
    with det.keras.init(config={"profiling": {"enabled": False}}, run_dir=tmp_path, seed=1):
        time.sleep(0.3)
    assert not (tmp_path / "system.jsonl").exists()


class _Arrived:
    """Waits until a file has content."""

    def __init__(self, path):
        self.path = path

    def wait(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while not (self.path.exists() and self.path.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)


@pytest.mark.process
def test_precision_and_determinism_follow_the_config():
    code = (
        "import det_keras as det, keras, numpy, random\n"
        "from tensorflow.python.framework.config import is_op_determinism_enabled\n"
        "config = {'reproducibility': {'deterministic_ops': True, 'experiment_seed': 4},\n"
        "          'optimizations': {'mixed_precision': 'O1'}}\n"
        "context = det.keras.init(config=config)\n"
        "print(is_op_determinism_enabled(), keras.config.dtype_policy().name, context.seed, random.random())\n"
    )
    printed = [
        warm.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.splitlines()[-1]
        for _ in range(2)
    ]
    assert printed[0].startswith("True mixed_float16 4 ")
    assert printed[0] == printed[1]


@pytest.mark.process
def test_other_keras_backend_is_refused_before_keras_fails(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "numpy"}')
    # A variable that is empty is as good as none, and not the file's word.
    code = """
import os, sys
from types import SimpleNamespace
import det_keras as det

def refusal():
    try:
        det.keras
    except det.errors.DetError as error:
        print(error)

refusal()
os.environ["KERAS_BACKEND"] = ""
sys.modules["keras"] = SimpleNamespace(config=SimpleNamespace(backend=lambda: "numpy"))
refusal()
del sys.modules["keras"]
print(det.keras.init, os.environ["KERAS_BACKEND"], sys.modules["keras"].config.backend())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "jax", "KERAS_HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, third = done.stdout.splitlines()
    assert "KERAS_BACKEND is 'jax'" in first
    assert "Keras's backend is 'numpy'" in second
    assert third.endswith("tensorflow tensorflow")


def test_other_seed_for_a_begun_run_is_refused_and_gives_the_directory_back(tmp_path):
    with det.keras.init(run_dir=tmp_path, seed=1):
        pass
    with pytest.raises(DetError, match="begun with seed 1, not 2"):
        det.keras.init(run_dir=tmp_path, seed=2)
    with det.keras.init(run_dir=tmp_path) as context:
        assert context.seed == 1


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_signal_to_a_script_alone_saves_and_leaves(tmp_path, number, code):
    script = (
        "import sys\nsys.path.insert(0, sys.argv[2])\n"
        "import time, keras, det_keras as det\n"
        "from kinds import arrays, network\n"
        "context = det.keras.init(run_dir=sys.argv[1], seed=1, config={'checkpoint_policy': 'none'})\n"
        "def batch_ended(batch, logs):\n"
        "    print('b', flush=True)\n"
        "    time.sleep(0.05)\n"
        "slow = keras.callbacks.LambdaCallback(on_train_batch_end=batch_ended)\n"
        "options = {'epochs': 50, 'validation_split': 0.2, 'verbose': 0, 'callbacks': [slow]}\n"
        "context.fit(network(optimizer='adam'), *arrays(), **options)\n"
    )
    process = warm.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    next(line for line in process.stdout if line == "b\n")
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    (metadata,) = tmp_path.glob("checkpoints/*/metadata.json")
    assert 0 < json.loads(metadata.read_text())["steps_completed"] < 50
