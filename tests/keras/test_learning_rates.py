"""The learning rate is a metric without any code; plain Keras says what it is, and that the history stays as it is."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import det_keras as det
from det_keras.keras.training.learning_rates import LearningRates

EPOCHS, STEPS, BATCH = 3, 4, 8
X, Y = np.ones((STEPS * BATCH, 4), "float32"), np.ones((STEPS * BATCH, 1), "float32")


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of the script's own."""

    def __call__(self, step):
        return 0.1 * tf.minimum(1.0, (tf.cast(step, tf.float32) + 1.0) / 6.0)


class Rates(keras.callbacks.Callback):
    """Records the learning rate after each epoch, in plain Keras."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(np.asarray(self.model.optimizer.learning_rate)))


RATES = {
    "constant": lambda: 0.125,
    "schedule of Keras": lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
    "schedule of the script": Warmup,
}
OPTIMIZERS = {
    "SGD": keras.optimizers.SGD,
    "scaled loss": lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate)),
}


def network(optimizer):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def plain(optimizer, *callbacks):
    rates, model = Rates(), network(optimizer)
    history = model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[rates, *callbacks])
    return rates.seen, history.history, model.get_weights()


def managed(run_dir, optimizer, *callbacks):
    with det.keras.init(run_dir=run_dir, seed=3) as context:
        model = network(optimizer)
        history = context.fit(
            model,
            x=X,
            y=Y,
            batch_size=BATCH,
            epochs=EPOCHS,
            verbose=0,
            callbacks=list(callbacks),
            validate=False,
        )
    return reports(run_dir), history.history, model.get_weights()


def reports(run_dir):
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row["metrics"] for row in rows if row["group"] == "training"]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rate_of_each_epoch_is_reported_and_nothing_else_changes(rate, kind, tmp_path):
    rates, history, weights = plain(OPTIMIZERS[kind](RATES[rate]()))
    found, own_history, own_weights = managed(tmp_path, OPTIMIZERS[kind](RATES[rate]()))
    assert [report["learning_rate"] for report in found] == rates
    assert own_history == history
    for one, other in zip(own_weights, weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rate_that_keras_reports_is_not_doubled(tmp_path):
    callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]
    _, history, _ = plain(keras.optimizers.SGD(0.1), *callbacks)
    found, own_history, _ = managed(tmp_path, keras.optimizers.SGD(0.1), *callbacks)
    assert own_history == history
    assert [report["learning_rate"] for report in found] == history["learning_rate"]


def test_metric_of_that_name_is_the_users(tmp_path):
    class Model(keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "learning_rate": 7.0}

    with det.keras.init(run_dir=tmp_path) as context:
        model = Model([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        context.fit(model, x=X, y=Y, epochs=1, verbose=0, validate=False)
    assert [report["learning_rate"] for report in reports(tmp_path)] == [7.0]


def test_function_of_the_script_is_not_called_for_a_report(tmp_path):
    calls = []

    def rate():
        calls.append(1)
        return 0.1

    network(keras.optimizers.SGD(rate)).fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    by_keras = len(calls)
    calls.clear()
    found, _, _ = managed(tmp_path, keras.optimizers.SGD(rate))
    assert "learning_rate" not in found[0]
    assert len(calls) == by_keras


def test_several_optimizers_have_a_rate_each():
    optimizers = [
        keras.optimizers.SGD(0.5, name="a"),
        keras.optimizers.Adam(0.25, name="b"),
        keras.optimizers.SGD(0.125, name="a"),
    ]
    assert LearningRates().read(optimizers) == {
        "learning_rate_a": 0.5,
        "learning_rate_b": 0.25,
        "learning_rate_a_2": 0.125,
    }
    assert LearningRates().read([]) == {}


def test_rate_that_cannot_be_read_is_left_out_and_named_once(caplog):
    class Broken(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            raise ValueError("not here")

    rates, optimizer = LearningRates(), keras.optimizers.SGD(Broken())
    assert rates.read([optimizer]) == rates.read([optimizer]) == {}
    assert len([record for record in caplog.records if "learning rate" in record.message]) == 1


def test_rate_of_a_loop_is_reported(tmp_path):
    model, optimizer = (
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
        keras.optimizers.SGD(0.125),
    )
    with det.keras.init(run_dir=tmp_path) as context:
        context.track(model=model, optimizer=optimizer)
        for _ in context.epochs(1):
            for x, y in context.batches(tf.data.Dataset.from_tensors((X, Y))):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - y) ** 2)
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
                context.report(loss=loss)
    assert [report["learning_rate"] for report in reports(tmp_path)] == [0.125]
