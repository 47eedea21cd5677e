"""What happens around the calls of `fit`: late signals, evaluations again, contexts that are closed."""

from __future__ import annotations

import json
import os
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from kinds import BATCH, arrays, network

import det_keras as det
from det_keras.errors import CheckpointError, DetError


def opened(path):
    keras.backend.clear_session(free_memory=False)
    return det.keras.init(run_dir=path, seed=1)


def fit(context, model, *callbacks, epochs=2):
    x, y = arrays()
    return context.fit(
        model,
        x,
        y,
        batch_size=BATCH,
        validation_data=(x[:16], y[:16]),
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
    )


def reports(context, group):
    lines = context.core.backend.run.metrics.read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["group"] == group]


class Signal(keras.callbacks.Callback):
    """Sends this process a signal in the last epoch."""

    def __init__(self, moment, number, last_epoch):
        super().__init__()
        self._moment, self._number, self._last_epoch = moment, number, last_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.params["steps"] - 1:
            self._send("batch")

    def on_test_begin(self, logs=None):
        self._send("validation")

    def on_train_end(self, logs=None):
        self._send("end")

    def _send(self, moment):
        if moment == self._moment and self._epoch == self._last_epoch:
            os.kill(os.getpid(), self._number)


@pytest.mark.parametrize(
    ("moment", "number", "left"),
    [
        ("batch", signal.SIGINT, KeyboardInterrupt),
        ("validation", signal.SIGTERM, SystemExit),
        ("end", signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_a_signal_in_the_last_moment_of_a_fit_is_obeyed(tmp_path, moment, number, left):
    with pytest.raises(left), opened(tmp_path) as context:
        fit(context, network(optimizer="adam"), Signal(moment, number, last_epoch=1))
    with opened(tmp_path) as context:
        # Begun again, the first call is over and the second one trains.
        model = network(optimizer="adam")
        assert fit(context, model).epoch == [0, 1]
        assert model.optimizer.iterations == context._script.phases[0].batches
        fit(context, model, epochs=3)
        assert model.optimizer.iterations == sum(phase.batches for phase in context._script.phases) > 0


def label_and_train_on(context, *callbacks):
    """Train, label other samples with what was learned, and train on those."""
    x = arrays()[0]
    model = network(optimizer="adam")
    fit(context, model)
    scores = context.predict(model, x[::-1])
    noise = np.random.normal(size=x.shape).astype("float32") + keras.ops.convert_to_numpy(
        keras.random.normal(x.shape)
    )
    data = (x[::-1] * (1 + scores[:, :1]) + 0.01 * noise, np.argmax(scores, axis=1))
    context.fit(
        model, *data, batch_size=BATCH, validation_data=data, epochs=4, verbose=0, callbacks=list(callbacks)
    )
    return model.get_weights()


def test_what_is_done_between_two_fits_comes_out_as_before(tmp_path):
    with opened(tmp_path / "undisturbed") as context:
        expected = label_and_train_on(context)
    for epoch in (1, 2):
        with pytest.raises(InterruptedError), opened(tmp_path / "killed") as context:
            label_and_train_on(context, Crash(epoch))
    with opened(tmp_path / "killed") as context:
        found = label_and_train_on(context)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


class Crash(keras.callbacks.Callback):
    """Raises at the end of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self._epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._epoch:
            raise InterruptedError


def test_an_evaluation_before_the_point_of_resuming_is_not_reported_again(tmp_path, caplog):
    x, y = arrays()

    def script(context, *callbacks):
        model = network(optimizer="adam")
        context.evaluate(model, x, y)
        fit(context, model)
        context.evaluate(model, x, y, BATCH)
        fit(context, model, *callbacks, epochs=4)
        return context.evaluate(model, x, y)

    with pytest.raises(InterruptedError), opened(tmp_path) as context:
        script(context, Crash(2))
    first = reports(context, "test")
    assert [one["steps_completed"] for one in first] == [0, context._script.phases[0].batches]
    assert "is not reported" not in caplog.text
    with opened(tmp_path) as context:
        last = script(context)
    # Two evaluations come before the point of resuming.
    assert caplog.text.count("What `evaluate` finds before the `fit` that continues") == 1
    after = reports(context, "test")
    assert after[:2] == first
    assert len(after) == 3
    assert after[2]["metrics"]["loss"] == pytest.approx(last["loss"])


def test_a_validation_is_remembered_over_a_restart(tmp_path):
    x, y = arrays()
    for _ in range(2):
        with opened(tmp_path) as context:
            model = network(optimizer="adam")
            fit(context, model)
            with pytest.raises(ValueError, match="has a validation already"):
                context.evaluate(model, x[:8], y[:8], report="validation")
    assert len(reports(context, "validation")) == 2


def test_a_closed_context_says_so(tmp_path):
    x, y = arrays()
    context = opened(tmp_path)
    model = network(optimizer="adam")
    fit(context, model)
    context.close()
    with pytest.raises(DetError, match=r"`fit` was called on a context that is closed"):
        fit(context, model)
    with pytest.raises(DetError, match=r"`evaluate` was called on a context that is closed"):
        context.evaluate(model, x, y)
    with pytest.raises(CheckpointError, match="closed"):
        context._script.writer.submit({}, None, lambda uuid: None)


def test_an_epoch_without_a_batch_is_refused(tmp_path):
    x, y = arrays()
    data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: False).batch(BATCH)
    with opened(tmp_path) as context, pytest.raises(ValueError, match="Epoch 1 had no batch"):
        context.fit(network(optimizer="adam"), data, validation_data=(x, y), verbose=0)


def test_nothing_to_evaluate_on_is_refused(tmp_path):
    x, y = arrays()
    data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: False).batch(BATCH)
    with opened(tmp_path) as context, pytest.raises(ValueError, match="empty"):
        context.evaluate(network(optimizer="adam"), data)


def test_an_end_that_is_gone_is_missed(tmp_path, caplog):
    with pytest.raises(InterruptedError), opened(tmp_path) as context:
        label_and_train_on(context, Crash(3))
    for path in tmp_path.glob("checkpoints/*/metadata.json"):
        if json.loads(path.read_text())["phase"] == 0:
            shutil.rmtree(path.parent)
    with opened(tmp_path) as context:
        model = network(optimizer="adam")
        assert fit(context, model).epoch == [0, 1]
    assert "No checkpoint is left of the end of `fit` number 1" in caplog.text


def test_batch_size_stands_where_keras_has_it(tmp_path):
    x, y = arrays()
    with opened(tmp_path) as context:
        model = network(optimizer="adam")
        whole = context.evaluate(model, x, y, len(x))
        assert context.evaluate(model, x, y, batch_size=BATCH)["loss"] == pytest.approx(
            whole["loss"], rel=1e-5
        )
        assert np.allclose(context.predict(model, x, 4), model.predict(x, verbose=0), atol=1e-6)
