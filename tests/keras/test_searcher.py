"""What a trial answers its searcher, also when it was killed before."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import keras
import pytest
from kinds import BATCH, Interrupted, arrays, network

import det_keras as det
from det_keras.core.backend import Operation
from det_keras.errors import CheckpointError

LENGTH = 6
CONFIG = {
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": LENGTH}},
    "min_checkpoint_period": {"batches": 2},
}


class KilledInValidation(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        raise Interrupted


def train(run_dir, *callbacks, length=LENGTH, optimizer="adam", has_operations=True):
    """Train as a trial with one length, in mid-epoch by default; return the metrics that the searcher was answered.

    A master without operations, as Determined's is, says the length in the config only; the validations are returned.
    """
    keras.utils.clear_session(free_memory=False)
    x, y = arrays()
    answers = []
    config = CONFIG
    if not has_operations:
        config = {**CONFIG, "searcher": {**CONFIG["searcher"], "max_length": {"batches": length}}}
    with det.keras.init(run_dir=run_dir, seed=1, config=config) as context:
        # What a trial has of a master, beside a run directory.
        trial = SimpleNamespace(trial_id=None, experiment_id=None)
        context.core.info = SimpleNamespace(trial=trial, latest_checkpoint=None)
        backend = context.core.backend
        backend.current_operation = lambda: Operation(length, bool(answers)) if has_operations else None
        backend.complete_operation = lambda operation, metric: answers.append(metric)
        context.fit(
            network(optimizer=optimizer), x, y, batch_size=BATCH, validation_data=(x[:16], y[:16]), verbose=0,
            callbacks=list(callbacks),
        )  # fmt: skip
    return answers if has_operations else last_validation(run_dir)


def last_validation(run_dir):
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["group"] == "validation"][-1]
    return last["steps_completed"], last["metrics"]


def newest_checkpoint(run_dir):
    newest = max((run_dir / "checkpoints").glob("*/metadata.json"), key=lambda path: path.stat().st_mtime_ns)
    return newest.parent, json.loads(newest.read_text())["steps_completed"]


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
    assert newest_checkpoint(tmp_path)[1] == LENGTH + 3
    assert train(tmp_path / "whole", optimizer=averaged(), length=LENGTH + 3) == [answer]


@pytest.mark.parametrize("end", ["as it is", "averaged"])
def test_longer_length_in_the_config_is_trained_where_no_operation_says_so(tmp_path, end):
    def optimizer():
        return keras.optimizers.SGD(0.1, use_ema=end == "averaged")

    def run(folder, length):
        return train(tmp_path / folder, length=length, optimizer=optimizer(), has_operations=False)

    run("continued", LENGTH)
    assert run("continued", LENGTH + 3) == run("whole", LENGTH + 3)
    assert newest_checkpoint(tmp_path / "continued")[1] == LENGTH + 3
    # A shorter one leaves it as it is.
    assert run("continued", LENGTH)[0] == LENGTH + 3


def test_length_that_no_checkpoint_can_be_trained_to_is_said(tmp_path):
    def run(length):
        train(
            tmp_path, length=length, optimizer=keras.optimizers.SGD(0.1, use_ema=True), has_operations=False
        )

    run(LENGTH)
    kept, _ = newest_checkpoint(tmp_path)
    for folder in kept.parent.iterdir():
        if folder != kept:
            shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match=f"only checkpoint that is left, {kept.name}, is "):
        run(LENGTH + 3)
