from __future__ import annotations

import json

import pytest

from det_keras.config import JobConfig, load_job_config
from det_keras.errors import ConfigError


def test_job_has_all_defaults() -> None:
    config = load_job_config("entrypoint: python3 predict.py").config

    assert config.name.startswith("Command (")
    assert (config.resources.slots, config.data, config.description) == (1, {}, None)
    assert config.command() == ["sh", "-c", "python3 predict.py"]


def test_fields_of_experiments_are_ignored_with_a_notice() -> None:
    raw = {"entrypoint": "x", "searcher": {"nonsense": 1}, "hyperparameters": {"a": 1}, "max_restarts": None}
    loaded = load_job_config(raw)

    assert loaded.notices == (
        "`searcher` has no effect in a job.",
        "`hyperparameters` has no effect in a job.",
    )


def test_unknown_keys_are_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        load_job_config("resources: {slot: 3}\nenviroment: {}")

    assert [(problem.path, "Did you mean" in problem.message) for problem in caught.value.problems] == [
        ("resources.slot", True),
        ("enviroment", True),
        ("entrypoint", False),
    ]


def test_slots_per_trial_are_the_slots_of_a_job() -> None:
    loaded = load_job_config("entrypoint: x\nresources: {slots_per_trial: 2}")

    assert loaded.config.resources.slots == 2
    assert "is read as `resources.slots`" in loaded.notices[0]


def test_job_has_no_trial_class() -> None:
    assert load_job_config("entrypoint: model_def:Trial").config.command() == ["sh", "-c", "model_def:Trial"]


def test_full_job_config_reads_back() -> None:
    raw = {
        "entrypoint_script": ["a", "b"],
        "environment": {"environment_variables": ["A=1"]},
        "data": {"x": [1]},
    }
    config = load_job_config(raw, overrides=["resources.slots=0"]).config
    full = json.loads(json.dumps(config.to_dict()))

    assert JobConfig.from_dict(full) == config
    assert JobConfig.from_dict({**full, "newer": 1}) == config
    assert load_job_config(full).config == config
