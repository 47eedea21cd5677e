"""`fit(validate=False)`: training metrics take the place of validations."""

from __future__ import annotations

import json

import keras
import pytest
from kinds import BATCH, STEPS, arrays, network

import det_keras as det


def train(run_dir, *, config=None, **options):
    keras.backend.clear_session(free_memory=False)
    with det.keras.init(config=config, run_dir=run_dir, seed=1) as context:
        model = network(optimizer="adam")
        history = context.fit(
            model, *arrays(), batch_size=BATCH, epochs=3, verbose=0, **{"validate": False, **options}
        )
        lines = context.core.backend.run.metrics.read_text().splitlines()
        checkpoints = context.core.backend.checkpoints()
        return history, [json.loads(line) for line in lines], checkpoints


def test_each_epochs_training_metrics_are_reported_as_its_validation(tmp_path):
    history, reports, _ = train(tmp_path / "run")
    validations = [report for report in reports if report["group"] == "validation"]
    assert [report["steps_completed"] for report in validations] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert [report["metrics"]["loss"] for report in validations] == history.history["loss"]
    assert not any(name.startswith("val_") for report in validations for name in report["metrics"])
    assert sorted(history.history) == ["accuracy", "loss"]


def test_best_checkpoint_goes_by_the_training_metric(tmp_path):
    config = {
        "searcher": {"name": "single", "metric": "loss", "max_length": {"epochs": 3}},
        "checkpoint_policy": "best",
    }
    history, _, checkpoints = train(tmp_path / "run", config=config)
    losses = history.history["loss"]
    best = [min(losses[: number + 1]) == losses[number] for number in range(3)]
    expected = {(number + 1) * STEPS for number in range(3) if best[number]} | {3 * STEPS}
    assert {record.steps_completed for record in checkpoints} <= expected
    newest = max(checkpoints, key=lambda record: record.steps_completed)
    assert newest.metadata["metrics"]["loss"] == losses[-1]


def test_the_way_out_is_named_where_validation_data_lacks(tmp_path):
    with pytest.raises(ValueError, match="validate=False"):
        train(tmp_path / "run", validate=True)


def test_validation_data_with_validate_false_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Leave one of them out"):
        train(tmp_path / "run", validation_data=arrays())
