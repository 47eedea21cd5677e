"""Whether training waits for its data: compared with what takes longer, a batch or a step."""

from __future__ import annotations

import json
import logging
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import det_keras as det
from det_keras.keras.data.waiting import DataWait

STEPS = 60
LONG_S, SHORT_S = 0.02, 0.001
BATCH = np.zeros((8, 4), "float32"), np.zeros((8, 1), "float32")
SIGNATURE = tuple(tf.TensorSpec(part.shape) for part in BATCH)


def generate(seconds):
    while True:
        time.sleep(seconds)
        yield BATCH


class Items(keras.utils.PyDataset):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return BATCH


class FewItems(Items):
    batches = 2

    def __len__(self):
        return self.batches


def dataset(seconds):
    return tf.data.Dataset.from_generator(lambda: generate(seconds), output_signature=SIGNATURE)


SOURCES = {
    "PyDataset": Items,
    "tf.data": lambda seconds: dataset(seconds).take(STEPS),
    "tf.data with parallel calls": lambda seconds: (
        dataset(seconds).map(lambda x, y: (x, y), num_parallel_calls=2).take(STEPS)
    ),
    "generator": generate,
}


class SleepingModel(keras.Sequential):
    """A model whose step takes a given time."""

    seconds = 0.0

    def train_step(self, data):
        with tf.control_dependencies([tf.py_function(lambda: time.sleep(self.seconds), [], [])]):
            return super().train_step(data)


def wait_percents(run_dir):
    rows = map(json.loads, (run_dir / "system.jsonl").read_text().splitlines())
    return [row["metrics"]["data_wait_percent"] for row in rows if "data_wait_percent" in row["metrics"]]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("data_s", "step_s"), [(LONG_S, SHORT_S), (SHORT_S, LONG_S)], ids=["slow data", "slow step"]
)
def test_training_waits_if_a_batch_takes_longer_than_a_step(source, data_s, step_s, tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 0.2)
    model = SleepingModel([keras.Input((4,)), keras.layers.Dense(1)])
    model.seconds = step_s
    with det.keras.init(config={}, run_dir=tmp_path) as context:
        model.compile(context.wrap_optimizer(keras.optimizers.SGD()), "mse")
        data = context.wrap_data(SOURCES[source](data_s))
        context.fit(model, data, steps_per_epoch=STEPS, epochs=1, verbose=0, validate=False)
    values = wait_percents(tmp_path)
    # Without the first, which has the tracing of the step.
    assert len(values) >= 3
    assert bool(np.mean(values[1:]) > 50) is (data_s > step_s), values


@pytest.mark.parametrize("source", ["PyDataset", "tf.data"])
def test_end_of_an_epoch_is_no_wait(source, tmp_path, monkeypatch):
    """At the last batch of a pass nothing is left to be ready: epochs of one batch would always seem to wait."""
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 0.2)
    data = {
        "PyDataset": FewItems(0.0),
        "tf.data": tf.data.Dataset.from_tensors(BATCH).repeat(FewItems.batches),
    }[source]
    model = SleepingModel([keras.Input((4,)), keras.layers.Dense(1)])
    # Opening the next pass is a wait, but a short one.
    model.seconds = 10 * LONG_S
    with det.keras.init(config={}, run_dir=tmp_path) as context:
        model.compile(context.wrap_optimizer(keras.optimizers.SGD()), "mse")
        context.fit(model, context.wrap_data(data), epochs=8, verbose=0, validate=False)
    values = wait_percents(tmp_path)
    assert values == [] or np.mean(values[1:]) < 50, values


def test_executions_of_several_steps_wait_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 0.2)
    for name, source in (("tf.data", dataset(LONG_S).take(STEPS)), ("PyDataset", Items(LONG_S))):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        with det.keras.init(config={}, run_dir=tmp_path / name) as context:
            model.compile(context.wrap_optimizer(keras.optimizers.SGD()), "mse", steps_per_execution=10)
            context.fit(
                model, context.wrap_data(source), steps_per_epoch=STEPS, epochs=1, verbose=0, validate=False
            )
    assert np.mean(wait_percents(tmp_path / "tf.data")[1:]) > 50
    # How many of its batches an execution has taken is not known.
    assert wait_percents(tmp_path / "PyDataset") == []


class Source:
    """A data source that is ahead as often as it is told."""

    def __init__(self, answers):
        self.answers = iter(answers)

    def is_ahead(self, step, at_once):
        assert (step, at_once) == (7, 1)
        return next(self.answers)


def test_looks_are_counted_since_the_last_sample():
    wait = DataWait(Source([True, False, False, False, None, True, None]), lambda: 7)
    assert wait.sample() == {}
    for _ in range(4):
        wait.look()
    assert wait.sample() == {"cpu": {"data_wait_percent": 75.0}}
    for _ in range(2):
        wait.look()
    assert wait.sample() == {"cpu": {"data_wait_percent": 0.0}}
    wait.look()
    assert wait.sample() == {}


def test_no_look_counts_between_epochs():
    wait = DataWait(Source([]), lambda: None)
    wait.look()
    assert wait.sample() == {}


def test_long_wait_is_told_once(caplog):
    # Five bad samples, a good one, and then enough bad ones.
    answers = [False] * 5 + [True] + [False] * 20
    wait = DataWait(Source(answers), lambda: 7)
    told = []
    with caplog.at_level(logging.WARNING):
        for _ in answers:
            wait.look()
            wait.sample()
            told.append(len(caplog.records))
    assert told == [0] * 11 + [1] * 15
    assert "data_wait_percent" in caplog.text
