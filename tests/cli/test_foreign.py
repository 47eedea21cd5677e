"""What a Determined master receives in place of a config as written."""

from __future__ import annotations

import pytest

from det_keras.cli.submission.config_file import read_experiment
from det_keras.cli.submission.foreign import experiment_text
from det_keras.config import load_yaml


@pytest.mark.parametrize("variables", ["[A=1]", "{cpu: [A=1], cuda: [A=1]}"])
def test_verification_is_not_submitted(variables, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
        "reproducibility: {verify_resume: always, experiment_seed: 1}\n"
        f"environment: {{environment_variables: {variables}}}\n"
    )
    text, _ = experiment_text(read_experiment(str(file), []))
    config = load_yaml(text)
    assert config["reproducibility"] == {"experiment_seed": 1}
    left = str(config["environment"]["environment_variables"])
    assert left.count("A=1") == variables.count("A=1")
    assert "VERIFY" not in text
