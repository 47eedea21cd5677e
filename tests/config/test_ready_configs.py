from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from det_keras.config import load_experiment_config, load_job_config

CONFIGS = Path(__file__).parents[2] / "configs"
EXPERIMENTS = ["const", "random", "grid", "adaptive_asha", "tpe", "distributed"]


def test_every_ready_config_is_tested() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == {*EXPERIMENTS, "job"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_ready_experiment_is_right_and_needs_no_notice(name: str) -> None:
    loaded = load_experiment_config((CONFIGS / f"{name}.yaml").read_text())

    assert loaded.notices == ()
    assert loaded.config.name == name


def test_ready_grid_has_the_size_that_it_says() -> None:
    assert (
        load_experiment_config((CONFIGS / "grid.yaml").read_text()).config.hyperparameters.grid_size() == 24
    )


def test_ready_job_is_right_and_needs_no_notice() -> None:
    assert load_job_config((CONFIGS / "job.yaml").read_text()).notices == ()


def test_importing_the_package_is_cheap() -> None:
    heavy = "{'numpy', 'pydantic', 'tensorflow', 'keras', 'fastapi', 'sqlalchemy', 'httpx'}"
    code = f"import sys, det_keras.config; print(sorted({heavy} & set(sys.modules)))"

    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )
