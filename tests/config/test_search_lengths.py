"""Lengths of searches: which are refused at submission, and which variant of a search they choose."""

from __future__ import annotations

from typing import Any

import pytest

from det_keras.config import ExperimentConfig, Length, load_experiment_config
from det_keras.errors import ConfigError


def config(
    hyperparameters: dict[str, Any] | None = None, records: int = 0, **searcher: Any
) -> dict[str, Any]:
    section = {"name": "adaptive_asha", "metric": "loss", "max_trials": 4, **searcher}
    return {
        "entrypoint": "a",
        "hyperparameters": hyperparameters or {},
        "records_per_epoch": records,
        "searcher": section,
    }


def refusal(raw: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_experiment_config(raw)
    (problem,) = caught.value.problems
    return f"{problem.path}: {problem.message}"


@pytest.mark.parametrize("method", ["adaptive_asha", "random"])
def test_records_without_a_batch_size_are_refused(method):
    raw = config(name=method, max_length={"records": 1000})
    assert "searcher.max_length" in refusal(raw)
    assert "`global_batch_size`" in refusal(raw)
    raw["hyperparameters"] = {"global_batch_size": 32}
    assert load_experiment_config(raw).config.searcher.max_length == Length.parse({"records": 1000})


def test_epochs_of_a_number_of_records_without_a_batch_size_are_refused():
    assert "`global_batch_size`" in refusal(config(records=60000, max_length={"epochs": 3}))
    assert load_experiment_config(config(max_length={"epochs": 3})).config.searcher.max_length is not None


def test_promotion_by_time_gets_its_lengths_from_the_time_metric():
    raw = config(time_metric="batches", max_time=900, stop_once=False)
    found = load_experiment_config(raw).config
    assert found.searcher.max_length == Length.batches(900)
    assert ExperimentConfig.from_dict(found.to_dict()).searcher == found.searcher


def test_promotion_by_a_metric_of_ones_own_is_refused():
    message = refusal(config(time_metric="tokens", max_time=900, stop_once=False))
    assert "searcher.stop_once" in message
    assert "'tokens'" in message


def test_wrong_time_is_the_only_problem():
    assert "max_time" in refusal(config(time_metric="epochs", max_time=0, stop_once=False))
