"""Callbacks go on where they were: files without a doubled line, counters, and state of the user's own."""

from __future__ import annotations

import csv

import keras
import pytest
import tensorflow as tf
from kinds import EPOCHS, STEPS, InterruptAt, Interrupted, train

import det_keras as det

EVERY_FOURTH = {"checkpoint_policy": "none", "min_checkpoint_period": {"batches": 4}}
MID_EPOCH = 14


def interrupted_and_resumed(run_dir, *make):
    """Train with callbacks that are made anew for each of two processes' worth of training."""
    with pytest.raises(Interrupted):
        train("arrays", run_dir, *(one() for one in make), InterruptAt(MID_EPOCH), **EVERY_FOURTH)
    callbacks = [one() for one in make]
    train("arrays", run_dir, *callbacks, InterruptAt(10**6), **EVERY_FOURTH)
    return callbacks


def test_csv_logger_writes_each_epoch_once(tmp_path):
    train("arrays", tmp_path / "whole", keras.callbacks.CSVLogger(tmp_path / "whole.csv"), InterruptAt(10**6))
    interrupted_and_resumed(tmp_path / "run", lambda: keras.callbacks.CSVLogger(tmp_path / "log.csv"))
    assert (tmp_path / "log.csv").read_text() == (tmp_path / "whole.csv").read_text()
    with (tmp_path / "log.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == [str(epoch) for epoch in range(EPOCHS)]


def test_csv_logger_that_had_written_a_later_epoch_does_not_double_it(tmp_path):
    """The checkpoint is of the first epoch, the file already holds the second."""
    path, config = (
        tmp_path / "log.csv",
        {"checkpoint_policy": "none", "min_checkpoint_period": {"batches": 8}},
    )
    with pytest.raises(Interrupted):
        train("arrays", tmp_path / "run", keras.callbacks.CSVLogger(path), InterruptAt(23), **config)
    assert path.read_text().count("\n") == 3
    train("arrays", tmp_path / "run", keras.callbacks.CSVLogger(path), InterruptAt(10**6), **config)
    with path.open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == [str(epoch) for epoch in range(EPOCHS)]


def steps_of(path):
    """Return the steps of the batch losses in a file that TensorBoard wrote, in order."""
    return [
        event.step
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "batch_loss"
    ]


def test_tensorboard_goes_on_at_its_step(tmp_path):
    pytest.importorskip("tensorboard")
    interrupted_and_resumed(
        tmp_path / "run", lambda: keras.callbacks.TensorBoard(tmp_path / "tb", update_freq=1)
    )
    files = sorted((tmp_path / "tb" / "train").glob("events.*"), key=lambda path: path.stat().st_mtime_ns)
    # Steps count from 1. The checkpoint is of batch 12: the batches after it are trained, and written, again.
    assert steps_of(files[-1]) == list(range(13, EPOCHS * STEPS + 1))


class Counter(keras.callbacks.Callback):
    """Counts batches, and tells its count."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def on_train_begin(self, logs=None):
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1

    def get_state(self):
        return {"count": self.count}

    def load_state(self, state):
        self.count = state["count"]


def test_callback_of_the_users_own_gets_its_state_back_after_on_train_begin(tmp_path):
    (counter,) = interrupted_and_resumed(tmp_path, Counter)
    assert counter.count == EPOCHS * STEPS


class OfBoth(det.keras.callbacks.Callback, keras.callbacks.EarlyStopping):
    """Keras's, with this package's hooks beside: `get_state` is inherited and says nothing."""


def test_keras_callback_with_this_packages_hooks_keeps_its_own_state(tmp_path):
    (stopping,) = interrupted_and_resumed(
        tmp_path, lambda: OfBoth(monitor="val_loss", min_delta=100.0, patience=9)
    )
    # The first epoch, before the interruption, had the best; each one since is one more without any better.
    assert (stopping.wait, stopping.best_epoch) == (EPOCHS - 1, 0)


def test_arguments_of_tensorboard_are_those_of_keras_but_the_directory(caplog):
    caplog.set_level("INFO", logger="det_keras")
    board = det.keras.callbacks.TensorBoard("elsewhere", 2, update_freq=5)
    assert (board.histogram_freq, board.update_freq, board.log_dir) == (2, 5, "")
    assert "`log_dir` has no effect" in caplog.text
    plain = keras.callbacks.TensorBoard("elsewhere", 2, update_freq=5)
    assert (board.write_graph, board.embeddings_freq) == (plain.write_graph, plain.embeddings_freq)


def test_arguments_that_keras_2_ignored_are_named_and_ignored(caplog):
    callback = det.keras.callbacks.TensorBoard(write_grads=True, batch_size=32, histogram_freq=2)
    assert callback.histogram_freq == 2
    assert "`write_grads` of TensorBoard has no effect, as in Keras 2." in caplog.text
    assert det.keras.callbacks.ReduceLROnPlateau(epsilon=0.5).min_delta == 0.5
    assert "`epsilon` of ReduceLROnPlateau is `min_delta` now." in caplog.text
    with pytest.raises(TypeError, match="nonsense"):
        det.keras.callbacks.TensorBoard(nonsense=1)
