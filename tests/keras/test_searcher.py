"""What a trial answers its searcher, also when it was killed before."""

from __future__ import annotations

import json
from types import SimpleNamespace

import keras
import pytest
from kinds import BATCH, Interrupted, arrays, network

import det_keras as det
from det_keras.core.backend import Operation

LENGTH = 6
CONFIG = {
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": LENGTH}},
    "min_checkpoint_period": {"batches": 2},
}


class KilledInValidation(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        raise Interrupted


def train(run_dir, *callbacks, length=LENGTH, optimizer="adam"):
    """Train as a trial with one length, in mid-epoch by default; return the metrics that the searcher was answered."""
    keras.utils.clear_session(free_memory=False)
    x, y = arrays()
    answers = []
    with det.keras.init(run_dir=run_dir, seed=1, config=CONFIG) as context:
        # What a trial has of a master, beside a run directory.
        trial = SimpleNamespace(trial_id=None, experiment_id=None)
        context.core.info = SimpleNamespace(trial=trial, latest_checkpoint=None)
        backend = context.core.backend
        backend.current_operation = lambda: Operation(length, bool(answers))
        backend.complete_operation = lambda operation, metric: answers.append(metric)
        context.fit(
            network(optimizer=optimizer), x, y, batch_size=BATCH, validation_data=(x[:16], y[:16]), verbose=0,
            callbacks=list(callbacks),
        )  # fmt: skip
    return answers


def test_trial_killed_while_it_validates_at_its_length_answers_all_the_same(tmp_path):
    undisturbed = train(tmp_path / "undisturbed")
    with pytest.raises(Interrupted):
        train(tmp_path / "killed", KilledInValidation())
    assert train(tmp_path / "killed") == undisturbed
    assert len(undisturbed) == 1


def test_trial_whose_end_changes_its_weights_goes_on_when_it_gets_more_to_do(tmp_path):
    """With EMA the end of a training overwrites the weights, and its checkpoint holds what can only be used."""

    def averaged():
        return keras.optimizers.SGD(0.1, use_ema=True)

    train(tmp_path, optimizer=averaged())
    (answer,) = train(tmp_path, optimizer=averaged(), length=LENGTH + 3)
    newest = max((tmp_path / "checkpoints").glob("*/metadata.json"), key=lambda path: path.stat().st_mtime_ns)
    assert json.loads(newest.read_text())["steps_completed"] == LENGTH + 3
    assert train(tmp_path / "whole", optimizer=averaged(), length=LENGTH + 3) == [answer]
