"""The speed of a training and the time until its end: compared with steps whose length is known."""

from __future__ import annotations

import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import det_keras as det
from det_keras.keras.training.pace import Pace
from det_keras.keras.training.position import Position, Target
from det_keras.keras.training.progress import Progress

STEP_S = 0.02
BATCH_SIZE = 8
X, Y = np.zeros((80, 4), "float32"), np.zeros((80, 1), "float32")


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Training:
    """A training that needs a second for each batch, and its pace."""

    def __init__(self, target, *, start=0, steps=10, batch_size=4):
        self.clock = Clock()
        epoch, step = divmod(start, 10)
        self.progress = Progress(0, Position(epoch, step, start), target, is_in_epoch=True)
        self.pace = Pace(self.progress, self.clock)
        self.pace.steps_per_epoch, self.pace.batch_size = steps, batch_size

    def train(self, batches, seconds=1.0):
        for _ in range(batches):
            self.pace.look()
            self.clock.now_s += seconds
            self.progress.advance()
            if self.progress.position.step == 10:
                self.progress.position = self.progress.position.next_epoch()
        self.pace.look()

    def sample(self):
        return dict(self.pace.sample().get("cpu", {}))


def test_speed_and_time_left_follow_from_what_was_trained():
    training = Training(Target(epochs=4))
    training.train(15)
    assert training.sample() == {"samples_per_second": 4.0, "seconds_left": pytest.approx(25.0)}
    training.train(5)
    assert training.sample() == {"samples_per_second": 4.0, "seconds_left": pytest.approx(20.0)}


def test_first_batch_of_a_process_does_not_count():
    """It traces the step."""
    training = Training(Target(batches=40), start=20)
    training.train(1, seconds=1000.0)
    assert training.sample() == {}
    training.train(10)
    assert training.sample() == {"samples_per_second": 4.0, "seconds_left": pytest.approx(9.0)}


def test_time_outside_of_epochs_belongs_to_the_time_left_but_not_to_the_speed():
    training = Training(Target(epochs=2))
    training.train(5)
    training.progress.is_in_epoch = False
    training.pace.look()
    training.clock.now_s += 4.0
    training.pace.look()
    training.progress.is_in_epoch = True
    training.train(5)
    # Eight seconds of batches after the first mark and four of the validation took 9 batches.
    assert training.sample() == {
        "samples_per_second": 4.0,
        "seconds_left": pytest.approx(10 * (9 + 4) / 9),
    }


def test_speed_is_in_batches_without_a_batch_size():
    training = Training(Target(epochs=4), batch_size=None)
    training.train(15)
    assert training.sample()["batches_per_second"] == 1.0
    assert "samples_per_second" not in training.sample()


def test_time_left_is_unknown_while_a_search_may_give_more():
    training = Training(Target(epochs=2, is_final=False))
    training.train(15)
    assert training.sample() == {"samples_per_second": 4.0}


def test_longer_length_begins_the_time_left_again():
    training = Training(Target(epochs=2))
    training.train(19)
    training.progress.target = Target(epochs=8)
    training.train(1)
    assert "seconds_left" not in training.sample()
    training.train(4)
    assert training.sample()["seconds_left"] == pytest.approx(56.0)


def test_epochs_of_unknown_length_have_a_time_left_after_the_second():
    training = Training(Target(epochs=4), steps=None)
    training.train(15)
    assert "seconds_left" not in training.sample()
    training.train(9)
    assert training.sample()["seconds_left"] == pytest.approx(16.0)


class SleepingModel(keras.Sequential):
    def train_step(self, data):
        with tf.control_dependencies([tf.py_function(lambda: time.sleep(STEP_S), [], [])]):
            return super().train_step(data)


def samples_of(run_dir):
    rows = map(json.loads, (run_dir / "system.jsonl").read_text().splitlines())
    return [row["metrics"] for row in rows if row["group"] == "cpu"]


def sleeping_model(context):
    model = SleepingModel([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(context.wrap_optimizer(keras.optimizers.SGD()), "mse")
    return model


def test_fit_reports_its_speed_with_the_load_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 0.4)
    with det.keras.init(config={}, run_dir=tmp_path) as context:
        x, y = context.wrap_data(X, Y)
        context.fit(
            sleeping_model(context), x, y, batch_size=BATCH_SIZE, epochs=12, verbose=0, validate=False
        )
    samples = samples_of(tmp_path)
    speeds = [sample["samples_per_second"] for sample in samples if "samples_per_second" in sample]
    assert speeds
    # A step cannot be faster than its sleep; a loaded machine makes it slower. A look may fall between two batches.
    assert 0 < np.mean(speeds) < 1.5 * BATCH_SIZE / STEP_S
    left = [sample["seconds_left"] for sample in samples if "seconds_left" in sample]
    assert left
    assert left[-1] < 60


def test_loop_reports_its_speed(tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 0.4)
    model, optimizer = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), keras.optimizers.SGD()
    with det.keras.init(config={}, run_dir=tmp_path) as context:
        context.track(model=model, optimizer=context.wrap_optimizer(optimizer))
        data = context.wrap_data(tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH_SIZE))
        for _ in context.epochs(6):
            for x, y in context.batches(data):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - y) ** 2)
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
                time.sleep(STEP_S)
                context.report(loss=loss)
    samples = samples_of(tmp_path)
    assert any("samples_per_second" in sample or "batches_per_second" in sample for sample in samples)
