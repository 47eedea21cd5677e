"""Fits that an exception left, files that a fit wrote, data that several fits read: a script that is started again."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from kinds import BATCH, Interrupted, arrays, network
from tensorflow.python.framework.config import disable_op_determinism

import det_keras as det
from det_keras.errors import DetError, ModelMismatchError
from det_keras.keras.data import generator
from det_keras.keras.fit.parts import DataPart
from det_keras.keras.training.phase import describe_error, rebuild_error

PERIOD = {"checkpoint_policy": "none", "min_checkpoint_period": {"batches": 2}}


class OutOfLuckError(Exception):
    """An error of the script's own."""


class Act(keras.callbacks.Callback):
    """Calls a function at one batch, counted over the training."""

    def __init__(self, at, act):
        super().__init__()
        self._at, self._act, self._batches = at, act, 0

    def on_train_batch_end(self, batch, logs=None):
        self._batches += 1
        if self._batches == self._at:
            self._act()


def raise_(error):
    """Raise an error, from a lambda."""
    raise error


def opened(path, **config):
    keras.utils.clear_session(free_memory=False)
    return det.keras.init(run_dir=path, seed=1, config={**PERIOD, **config})


def fit(context, model, *callbacks, epochs=2, **options):
    x, y = arrays()
    return context.fit(
        model, x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=list(callbacks), validate=False, **options
    )  # fmt: skip


def two_fits(context, leave, *later):
    """Train, catch what leaves the training, and train again; return the error and the weights."""
    model = network(optimizer="adam")
    with pytest.raises((OutOfLuckError, KeyboardInterrupt)) as left:
        fit(context, model, Act(5, leave))
    model.compile("sgd", "sparse_categorical_crossentropy")
    fit(context, model, *later)
    return left.value, model.get_weights()


@pytest.mark.parametrize(
    "leave",
    [lambda: raise_(OutOfLuckError("of", 5)), lambda: os.kill(os.getpid(), signal.SIGINT)],
    ids=["own error", "Ctrl-C"],
)
@pytest.mark.parametrize("at", [1, 3])
def test_fit_that_was_left_is_left_in_the_same_state_again(tmp_path, leave, at):
    with opened(tmp_path / "undisturbed") as context:
        error, expected = two_fits(context, leave)
    with pytest.raises(Interrupted), opened(tmp_path / "killed") as context:
        two_fits(context, leave, Act(at, lambda: raise_(Interrupted())))
    with opened(tmp_path / "killed") as context:
        # It is not trained again: nothing leaves it a second time.
        again, found = two_fits(context, lambda: None)
        assert context._script.phases[0].batches in (4, 5)
    assert type(again) is type(error)
    assert again.args == error.args
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def assert_interruption_changes_nothing(trained, folder):
    """Compare a script that is interrupted at batch 5 and started again with an undisturbed one, by their weights.

    Args:
        trained: runs the script in a run directory, with further callbacks, and returns the weights.
        folder: for the run directories.
    """
    expected = trained(folder / "undisturbed")
    with pytest.raises(Interrupted):
        trained(folder / "killed", Act(5, lambda: raise_(Interrupted())))
    for ours, theirs in zip(trained(folder / "killed"), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Refusing(keras.callbacks.Callback):
    """Raises before a training has begun."""

    def on_train_begin(self, logs=None):
        raise OutOfLuckError("early")


def test_error_before_training_begins_is_that_of_the_script(tmp_path):
    def trained(path, *later):
        with opened(path) as context:
            model = network(optimizer="adam")
            with pytest.raises(OutOfLuckError, match="early"):
                fit(context, model, Refusing())
            fit(context, model, *later)
            return model.get_weights()

    assert_interruption_changes_nothing(trained, tmp_path)


def test_error_is_that_of_the_script_also_if_its_state_cannot_be_kept(tmp_path, monkeypatch, caplog):
    with opened(tmp_path) as context:
        monkeypatch.setattr(DataPart, "at_end", lambda _: raise_(OSError("no space")))
        with pytest.raises(OutOfLuckError):
            fit(context, network(optimizer="adam"), Act(5, lambda: raise_(OutOfLuckError())))
    assert "cannot be kept" in caplog.text


def test_validation_before_a_model_is_built_does_not_limit_what_is_saved(tmp_path):
    def trained(path, *callbacks):
        with opened(path, perform_initial_validation=True) as context:
            model = keras.Sequential(
                [keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
            )
            model.compile("adam", "sparse_categorical_crossentropy")
            x, y = arrays()
            context.fit(
                model, x, y, validation_data=(x, y), batch_size=BATCH, epochs=2, verbose=0, callbacks=list(callbacks)
            )  # fmt: skip
            return model.get_weights()

    assert_interruption_changes_nothing(trained, tmp_path)


def test_fit_that_nobody_caught_resumes_from_its_checkpoint(tmp_path):
    with opened(tmp_path / "undisturbed") as context:
        expected = fit(context, network(optimizer="adam")).history
    with pytest.raises(OutOfLuckError), opened(tmp_path / "left") as context:
        fit(context, network(optimizer="adam"), Act(5, lambda: raise_(OutOfLuckError())))
    with opened(tmp_path / "left") as context:
        assert fit(context, network(optimizer="adam")).history == expected


@pytest.mark.parametrize(
    "error", [ValueError("a", 1), OutOfLuckError("b"), KeyError("c"), KeyboardInterrupt()]
)
def test_errors_are_described_and_rebuilt(error):
    again = rebuild_error(describe_error(error))
    assert type(again) is type(error)
    assert again.args == error.args


def test_error_whose_class_is_gone_is_a_runtime_error():
    gone = {**describe_error(ValueError("a", 1)), "module": "gone", "name": "Gone"}
    assert str(rebuild_error(gone)) == "Gone: a, 1"


def folds(context, folder, *later):
    """Train two models that save their weights to one file; return what is read of it after each."""
    found = []
    for number in range(2):
        model = network(optimizer="adam")
        saved = keras.callbacks.ModelCheckpoint(folder / "best.weights.h5", save_weights_only=True)
        note = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: (folder / "epoch.txt").write_text(f"{number} {epoch}")  # noqa: B023
        )
        fit(context, model, saved, note, *(later if number else ()))
        model.load_weights(folder / "best.weights.h5")
        found.append((model.get_weights(), (folder / "epoch.txt").read_text()))
    return found


def test_files_of_a_finished_fit_have_the_content_of_its_end(tmp_path):
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
    with opened(tmp_path / "undisturbed" / "run") as context:
        expected = folds(context, tmp_path / "undisturbed")
    with pytest.raises(Interrupted), opened(tmp_path / "killed" / "run") as context:
        folds(context, tmp_path / "killed", Act(6, lambda: raise_(Interrupted())))
    (tmp_path / "killed" / "epoch.txt").write_text("something else")
    with opened(tmp_path / "killed" / "run") as context:
        found = folds(context, tmp_path / "killed")
    for (ours, our_text), (theirs, their_text) in zip(found, expected, strict=True):
        assert our_text == their_text
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_large_file_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("det_keras.keras.training.written_files._LARGEST_BYTES", 4)

    def write(text):
        (tmp_path / "large.txt").write_text(text)

    with opened(tmp_path / "run") as context:
        fit(context, network(optimizer="adam"), Act(1, lambda: write("content")))
    write("another")
    with caplog.at_level(logging.WARNING), opened(tmp_path / "run") as context:
        fit(context, network(optimizer="adam"), Act(1, lambda: None))
    assert "large.txt`, which is too large for checkpoints" in caplog.text
    assert (tmp_path / "large.txt").read_text() == "another"


def batches(draws, name):
    """Yield batches without end, and count them."""
    x, y = arrays()
    order = np.random.default_rng(1)
    while True:
        draws[name] = draws.get(name, 0) + 1
        rows = order.permutation(len(x))[:BATCH]
        yield x[rows], y[rows]


def read_by_two_fits(train):
    """Train twice on one generator and validate on another; return what was drawn at each moment that a script sees."""
    draws, seen = {}, []
    data, validation = batches(draws, "training"), batches(draws, "validation")
    model = network(optimizer="adam")
    note = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(dict(draws)),
        on_epoch_end=lambda epoch, logs: seen.append(dict(draws)),
    )
    for _ in range(2):
        train(
            model, data, steps_per_epoch=4, epochs=2, validation_data=validation, validation_steps=3, verbose=0,
            callbacks=[note],
        )  # fmt: skip
        seen.append(dict(draws))
    return seen


@pytest.fixture
def determinism():
    """Let ops be as they were for the tests after this one, which run in the same process."""
    yield
    disable_op_determinism()


@pytest.mark.usefixtures("determinism")
def test_generators_are_read_as_far_as_plain_keras_reads_them(tmp_path):
    with opened(tmp_path, reproducibility={"deterministic_ops": True}) as context:
        found = read_by_two_fits(context.fit)
        # Where ops are deterministic, Keras reads nothing ahead, which would depend on the load of the machine.
        assert found == read_by_two_fits(lambda model, *data, **options: model.fit(*data, **options))


@pytest.mark.usefixtures("determinism")
def test_checkpoints_inside_of_a_finite_generator_wait_for_no_item_that_is_not_read(tmp_path, monkeypatch):
    """The pass begins with items that were drawn before, to see what they look like."""
    waits = []

    class Condition(threading.Condition):
        def wait_for(self, predicate, timeout=None):
            waits.append(super().wait_for(predicate, timeout))
            return waits[-1]

    monkeypatch.setattr(generator, "threading", SimpleNamespace(Condition=Condition))
    monkeypatch.setattr(generator, "_LONGEST_WAIT_S", 0.5)
    x, y = arrays()
    parts = ((x[row : row + BATCH], y[row : row + BATCH]) for row in range(0, 9 * BATCH, BATCH))
    with opened(tmp_path, reproducibility={"deterministic_ops": True}) as context:
        context.fit(network(optimizer="adam"), parts, verbose=0, validate=False)
    assert len(waits) > 2, "at each checkpoint inside of the pass"
    assert all(waits), "an item was waited for until the time was up"


def test_script_that_resumes_by_itself_is_told_what_to_remove(tmp_path):
    with pytest.raises(Interrupted), opened(tmp_path) as context:
        fit(context, network(optimizer="adam"), Act(7, lambda: raise_(Interrupted())))
    removed = "remove what does that: its own `initial_epoch`"
    with pytest.raises(ModelMismatchError, match=removed), opened(tmp_path) as context:
        fit(context, network(optimizer="adam"), initial_epoch=1)


def test_length_that_is_used_up_is_refused(tmp_path):
    from types import SimpleNamespace

    from det_keras.core.backend import Operation

    with opened(tmp_path) as context:
        trial = SimpleNamespace(trial_id=None, experiment_id=None)
        context.core.info = SimpleNamespace(trial=trial, latest_checkpoint=None)
        done = []
        context.core.backend.current_operation = lambda: Operation(1, bool(done))
        context.core.backend.complete_operation = lambda operation, metric: done.append(metric)
        x, y = arrays()
        options = {"batch_size": BATCH, "validation_data": (x[:16], y[:16]), "verbose": 0}
        model = network(optimizer="adam")
        context.fit(model, x, y, **options)
        with pytest.raises(
            DetError, match=r"training number 2 of the script.*Leave out `searcher.max_length`"
        ):
            context.fit(model, x, y, **options)
