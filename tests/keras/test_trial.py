"""TFKerasTrial classes: what they may return, how long they train, and what their callbacks hear."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import det_keras as det
from det_keras.errors import DetError
from det_keras.keras.generations.trial import load_trial_class, train
from det_keras.keras.generations.trial_context import TFKerasTrialContext

SAMPLES, BATCH = 40, 8
CONFIG = {
    "hyperparameters": {"global_batch_size": BATCH, "learning_rate": 0.05},
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 12}},
    "min_validation_period": {"batches": 6},
    "scheduling_unit": 4,
    "reproducibility": {"experiment_seed": 3},
    "data": {"folder": "x"},
}


def arrays():
    rng = np.random.RandomState(1)
    x = rng.normal(size=(SAMPLES, 4)).astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


class Tiny(det.keras.TFKerasTrial):
    """A small classifier on arrays; what differs is overridden."""

    optimizer: object = "sgd"
    callbacks: tuple = ()

    def build_model(self):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        model = self.context.wrap_model(model)
        optimizer = self.optimizer
        if optimizer is None:
            optimizer = self.context.wrap_optimizer(
                keras.optimizers.Adam(self.context.get_hparam("learning_rate"))
            )
        model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
        return model

    def build_training_data_loader(self):
        return arrays()

    def build_validation_data_loader(self):
        x, y = arrays()
        return x[:16], y[:16]

    def keras_callbacks(self):
        return list(self.callbacks)


class Batches(keras.utils.Sequence):
    def __init__(self):
        super().__init__()

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return tuple(array[rows] for array in arrays())


def run(folder, trial_class, **changes):
    """Train alone in a run directory; return the trained history and the reports by group."""
    # A process of its own would begin to count the names of layers anew.
    keras.utils.clear_session(free_memory=False)
    with det.keras.init(config={**CONFIG, **changes}, run_dir=folder) as context:
        history = train(trial_class, context)
    return history, reports(folder)


def reports(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        group: [(row["steps_completed"], row["metrics"]) for row in rows if row["group"] == group]
        for group in {row["group"] for row in rows}
    }


def trial_of(**overrides):
    return type("Overridden", (Tiny,), overrides)


def loader(make):
    return trial_of(build_training_data_loader=make)


def weights_of(self):
    x, y = arrays()
    return x, y, np.linspace(0, 1, SAMPLES)


def in_memory(self):
    return det.keras.InMemorySequence(*arrays(), batch_size=self.context.get_per_slot_batch_size())


def adapter(self):
    return det.keras.SequenceAdapter(Batches(), workers=2, max_queue_size=3)


def tf_data(self):
    return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(arrays())).batch(BATCH)


def repeated(self):
    return tf_data(self).repeat()


def cached(self):
    @self.context.experimental.cache_train_dataset("tiny", "1", shuffle=True)
    def make():
        return tf.data.Dataset.from_tensor_slices(arrays()).filter(lambda x, y: True)

    return make().batch(BATCH)


@pytest.mark.parametrize(
    "make",
    [None, weights_of, lambda self: Batches(), in_memory, adapter, tf_data, repeated, cached],
    ids=["arrays", "weights", "sequence", "in_memory", "adapter", "tf_data", "repeated", "cached"],
)
def test_every_kind_of_loader_trains_to_the_very_batch(tmp_path, make):
    _, found = run(tmp_path, Tiny if make is None else loader(make))
    assert [steps for steps, _ in found["validation"]] == [6, 12]
    assert set(found["validation"][0][1]) >= {"val_loss", "val_mae", "batches", "epochs"}
    # Every scheduling unit, and at epochs' ends; data without an end has epochs of a scheduling unit.
    ends = [] if make is repeated else [5, 10]
    assert [steps for steps, _ in found["training"]] == sorted([4, 8, 12, *ends])


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ({"searcher": {**CONFIG["searcher"], "max_length": {"epochs": 2}}}, 10),
        ({"searcher": {**CONFIG["searcher"], "max_length": {"records": 56}}}, 7),
        ({"searcher": {**CONFIG["searcher"], "max_length": {"epochs": 2}}, "records_per_epoch": 24}, 6),
    ],
    ids=["epochs", "records", "epochs_of_records"],
)
def test_lengths_in_every_unit_are_kept(tmp_path, changes, batches):
    _, found = run(tmp_path, Tiny, **changes, min_validation_period={"batches": 0})
    # Nobody asks for a validation but the end of the length.
    assert [steps for steps, _ in found["validation"]] == [batches]
    with det.keras.init(config={**CONFIG, **changes}, run_dir=tmp_path) as context:
        newest = context.core.backend.checkpoints()[0]
        assert newest.steps_completed == batches
        assert "val_loss" in newest.metadata["metrics"]


def test_hyperparameters_and_config_are_answered(tmp_path):
    with det.keras.init(config=CONFIG, run_dir=tmp_path) as keras_context:
        context = TFKerasTrialContext(keras_context)
        assert context.get_hparam("learning_rate") == 0.05
        assert context.get_hparams() == CONFIG["hyperparameters"]
        assert context.get_data_config() == {"folder": "x"}
        assert context.get_experiment_config()["min_validation_period"] == {"batches": 6}
        assert (context.get_global_batch_size(), context.get_per_slot_batch_size()) == (BATCH, BATCH)
        assert (context.get_experiment_id(), context.get_trial_id(), context.get_trial_seed()) == (0, 0, 3)
        assert context.distributed.get_size() == 1
        with pytest.raises(ValueError, match=r"'nothing'.*'global_batch_size', 'learning_rate'"):
            context.get_hparam("nothing")


@pytest.mark.parametrize("size", [None, 0, 2.5, True])
def test_batch_size_is_needed(tmp_path, size):
    hparams = {} if size is None else {"global_batch_size": size}
    with (
        det.keras.init(hparams=hparams, run_dir=tmp_path) as context,
        pytest.raises(ValueError, match="global_batch_size"),
    ):
        TFKerasTrialContext(context)


def test_configured_fit_keeps_what_is_not_named(tmp_path):
    with det.keras.init(config=CONFIG, run_dir=tmp_path) as keras_context:
        context = TFKerasTrialContext(keras_context)
        context.configure_fit(verbose=False, workers=3)
        context.configure_fit(use_multiprocessing=None, class_weight={0: 1.0, 1: 2.0})
        chosen = context.fit_configuration
        assert (chosen.verbose, chosen.workers, chosen.class_weight) == (False, 3, {0: 1.0, 1: 2.0})
        assert context.prepare_sequence(Batches()).workers == 3
        with pytest.raises(TypeError, match="epochs"):
            context.configure_fit(epochs=3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"build_model": lambda self: None}, r"must return a keras\.Model"),
        ({"build_model": lambda self: keras.Sequential([keras.layers.Dense(1)])}, "must compile"),
        ({"build_training_data_loader": lambda self: [1, 2]}, "training data loader must return"),
        ({"build_validation_data_loader": lambda self: None}, "validation data loader must return"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, overrides, message):
    with (
        det.keras.init(config=CONFIG, run_dir=tmp_path) as context,
        pytest.raises((TypeError, ValueError), match=message),
    ):
        train(trial_of(**overrides), context)


def test_length_is_needed(tmp_path):
    with (
        det.keras.init(hparams={"global_batch_size": 8}, run_dir=tmp_path) as context,
        pytest.raises(DetError, match="max_length"),
    ):
        train(Tiny, context)


def test_session_config_is_said_to_be_without_effect(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run(tmp_path, trial_of(session_config=lambda self: None))
    assert "`session_config` has no effect" in caplog.text


class Log(det.keras.callbacks.Callback):
    """Writes down every call with its arguments, and counts in its state."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.calls = []
        self.count = 0
        self.stop_after = stop_after

    def say(self, name, *arguments):
        self.calls.append((name, *arguments))
        self.count += 1

    def on_train_begin(self, logs=None):
        self.say("train_begin")

    def on_train_end(self, logs=None):
        self.say("train_end")
        self.weights = self.model.get_weights()

    def on_epoch_begin(self, epoch, logs=None):
        self.say("epoch_begin", epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.say("epoch_end", epoch, sorted(logs))

    def on_train_batch_begin(self, batch, logs=None):
        self.say("batch_begin", batch)

    def on_train_batch_end(self, batch, logs=None):
        self.say("batch_end", batch, sorted(logs))
        if (
            self.stop_after is not None
            and len([one for one in self.calls if one[0] == "batch_end"]) == self.stop_after
        ):
            raise KeyboardInterrupt

    def on_test_begin(self, logs=None):
        self.say("test_begin")

    def on_test_end(self, logs=None):
        self.say("test_end", {name: float(value) for name, value in logs.items()})

    def on_train_workload_begin(self, total_batches_trained, batches_requested, logs):
        self.say("workload_begin", total_batches_trained, batches_requested, logs)

    def on_train_workload_end(self, total_batches_trained, logs):
        self.say("workload_end", total_batches_trained, logs)

    def on_checkpoint_end(self, checkpoint_dir):
        (Path(checkpoint_dir) / "note.txt").write_text(str(self.count))

    def get_state(self):
        return self.count

    def load_state(self, state):
        self.count = state


def trace(log):
    """Return the calls without metrics' values, for reading."""
    short = {"workload_end": lambda call: call[:2], "test_end": lambda call: call[:1]}
    return [" ".join(str(part) for part in short.get(call[0], lambda one: one)(call)) for call in log.calls]


def batch(number):
    return [f"batch_begin {number}", f"batch_end {number} ['loss', 'mae']"]


EXPECTED = [
    "train_begin",
    "workload_begin 0 4 {}", "epoch_begin 0", *batch(0), *batch(1), *batch(2), *batch(3), "workload_end 4",
    "workload_begin 4 2 {}", *batch(4), "epoch_end 0 ['loss', 'mae']", "epoch_begin 1", *batch(0), "workload_end 6",
    "test_begin", "test_end",
    "workload_begin 6 2 {}", *batch(1), *batch(2), "workload_end 8",
    "workload_begin 8 4 {}", *batch(3), *batch(4), "epoch_end 1 ['loss', 'mae']", "epoch_begin 2", *batch(0), *batch(1),
    # The length ends inside of the third epoch.
    "workload_end 12", "test_begin", "test_end",
    "train_end",
]  # fmt: skip


def test_callbacks_hear_this_and_nothing_else(tmp_path):
    log = Log()
    run(tmp_path, trial_of(callbacks=[log]))
    assert trace(log) == EXPECTED


@pytest.mark.parametrize("stop_after", [1, 3, 4, 5, 6, 9])
def test_calls_around_a_pause_join_to_those_of_an_undisturbed_trial(tmp_path, stop_after, undisturbed):
    """What begins is said again with the same arguments; all else is said once, and counted once."""
    config = {"min_checkpoint_period": {"batches": 1}}
    first = Log(stop_after)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, trial_of(callbacks=[first]), **config)
    second = Log()
    run(tmp_path, trial_of(callbacks=[second]), **config)
    begins = next(index for index, call in enumerate(second.calls) if call[0] == "batch_begin")
    again, rest = second.calls[:begins], second.calls[begins:]
    assert {call[0] for call in again} <= {"train_begin", "workload_begin", "epoch_begin"}
    # The state that is gone on from is the newest checkpoint's: one batch before the kill.
    whole = undisturbed.calls
    assert rest == whole[len(whole) - len(rest) :]
    said = [call for call in again if call not in whole[: len(whole) - len(rest)]]
    assert said == [], "what is said again was said before with other arguments"
    assert second.count == undisturbed.count
    for one, other in zip(second.weights, undisturbed.weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    log = Log()
    folder = tmp_path_factory.mktemp("undisturbed")
    run(folder, trial_of(callbacks=[log]), min_checkpoint_period={"batches": 1})
    return log


def test_files_of_callbacks_are_in_the_checkpoint(tmp_path):
    log = Log()
    run(tmp_path, trial_of(callbacks=[log]))
    notes = {
        json.loads((path.parent / "metadata.json").read_text())["steps_completed"]: int(path.read_text())
        for path in (tmp_path / "checkpoints").glob("*/note.txt")
    }
    # The calls up to a checkpoint; the last comes after the training's end.
    assert notes[12] in (EXPECTED.index("train_end"), len(EXPECTED))
    assert notes.get(6, EXPECTED.index("workload_begin 6 2 {}")) == EXPECTED.index("workload_begin 6 2 {}")


def test_early_stopping_counts_validations(tmp_path):
    stopping = det.keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=100.0)
    _, found = run(tmp_path, trial_of(callbacks=[stopping]), min_validation_period={"batches": 2})
    assert [steps for steps, _ in found["validation"]][:2] == [2, 4]
    assert max(steps for steps, _ in found["training"]) == 4


def test_learning_rate_falls_by_validations_and_remembers_over_a_pause(tmp_path):
    def rates(folder, *stops):
        for stop in (*stops, None):
            plateau = det.keras.callbacks.ReduceLROnPlateau(
                monitor="val_loss", patience=2, factor=0.5, min_delta=100.0
            )
            trial_class = trial_of(callbacks=[plateau, Log(stop)])
            config = {"min_validation_period": {"batches": 2}, "min_checkpoint_period": {"batches": 1}}
            if stop is not None:
                with pytest.raises(KeyboardInterrupt):
                    run(folder, trial_class, **config)
            else:
                run(folder, trial_class, **config)
        return plateau.wait, plateau.best, float(plateau.model.optimizer.learning_rate)

    assert rates(tmp_path / "paused", 3, 4) == rates(tmp_path / "whole")


def test_stop_on_request_ends_the_trial(tmp_path):
    class Stops(keras.callbacks.Callback):
        def __init__(self, context):
            super().__init__()
            self.context = context

        def on_train_batch_end(self, batch, logs=None):
            self.context.set_stop_requested(True)

    _, found = run(tmp_path, trial_of(keras_callbacks=lambda self: [Stops(self.context)]))
    assert max(steps for steps, _ in found["training"]) == 1


def test_request_to_stop_before_training_is_heard(tmp_path):
    def build_model(self):
        self.context.set_stop_requested(True)
        return Tiny.build_model(self)

    _, found = run(tmp_path, trial_of(build_model=build_model))
    assert max(steps for steps, _ in found["training"]) == 1


def test_checkpoint_is_loaded_by_path(tmp_path, caplog):
    run(tmp_path, Tiny)
    directory = next(path.parent for path in (tmp_path / "checkpoints").glob("*/manifest.json"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model = det.keras.load_model_from_checkpoint_path(str(directory), tags=["serve"])
    assert isinstance(model, keras.Model)
    assert caplog.text.count("`tags` has no effect") == 1


def test_old_name_of_the_sequence_checks_its_arrays():
    with pytest.raises(ValueError, match="same number of samples"):
        det.keras.InMemorySequence(np.zeros((3, 1)), np.zeros(2), 2)
    with pytest.raises(ValueError, match="at least 1"):
        det.keras.InMemorySequence(np.zeros((3, 1)), np.zeros(3), 0)
    with pytest.raises(ValueError, match="Received arrays of \\[\\]"):
        det.keras.InMemorySequence([], [], 1)
    assert len(det.keras.InMemorySequence(np.zeros((1, 1)), np.zeros(1), 2)) == 1
    assert det.keras.SequenceAdapter(Batches()).sequence.workers == 1
    sequence = det.keras.InMemorySequence({"a": np.arange(5)}, [np.arange(5)], 2)
    assert [len(sequence[index][0]["a"]) for index in range(len(sequence))] == [2, 2, 1]
    with pytest.raises(IndexError):
        sequence[3]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ({}, "model_def:T", "no module 'model_def'"),
        ({"model_def.py": "x = 1"}, "model_def:T", "has no 'T'"),
        ({"model_def.py": "T = 1"}, "model_def:T", "is no TFKerasTrial"),
        ({}, None, "no __init__.py"),
        ({"__init__.py": "x = 1"}, None, "It holds: none"),
    ],
)
def test_class_that_cannot_be_found_is_named(tmp_path, monkeypatch, content, name, message):
    for file, text in content.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    for module in ("model_def", "__init__"):
        __import__("sys").modules.pop(module, None)
    with pytest.raises(DetError, match=message):
        load_trial_class(name)


@pytest.mark.parametrize("name", [None, "T", "__init__:T"])
def test_class_in_the_init_file_is_found(tmp_path, monkeypatch, name):
    (tmp_path / "__init__.py").write_text("import det_keras as det\nclass T(det.keras.TFKerasTrial): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    __import__("sys").modules.pop("__init__", None)
    assert load_trial_class(name).__name__ == "T"
