"""Data whose length only its end tells: a resume at the last batch of an epoch loses and doubles nothing."""

from __future__ import annotations

import json

import keras
import pytest
import tensorflow as tf
from kinds import BATCH, STEPS, Interrupted, arrays, network

import det_keras as det

CONFIG = {
    "min_checkpoint_period": {"batches": STEPS},
    "checkpoint_policy": "none",
    # The norms of the gradients of the last batch are needed too.
    "profiling": {"enabled": False, "layers": True},
}


class InterruptValidation(keras.callbacks.Callback):
    """Ends the process's training in the validation of an epoch: after the epoch's last batch, before its end."""

    def __init__(self, at=None):
        super().__init__()
        self.left = at

    def get_state(self): ...

    def load_state(self, state): ...

    def on_test_begin(self, logs=None):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Interrupted


def train(run_dir, at=None):
    keras.backend.clear_session(free_memory=False)
    x, y = arrays()
    rows = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: True).batch(BATCH)
    assert int(rows.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    with det.keras.init(config=CONFIG, run_dir=run_dir, seed=1) as context:
        history = context.fit(
            network(optimizer="adam"),
            rows,
            epochs=3,
            validation_data=(x, y),
            verbose=0,
            callbacks=[InterruptValidation(at)],
        )
        reports = context.core.backend.run.metrics.read_text().splitlines()
        return history.history, [json.loads(line) for line in reports]


def told(reports):
    """Return what reports say, without when."""
    return [(one["group"], one["steps_completed"], one["metrics"]) for one in reports]


@pytest.mark.parametrize("epoch", [1, 2])
def test_resume_at_an_epochs_last_batch_keeps_its_metrics_and_reports_them_once(tmp_path, epoch):
    expected_history, expected = train(tmp_path / "undisturbed")
    with pytest.raises(Interrupted):
        train(tmp_path / "run", at=epoch)
    history, reports = train(tmp_path / "run")
    assert history == expected_history
    assert {len(values) for values in history.values()} == {3}
    assert told(reports) == told(expected)
