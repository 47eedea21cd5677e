from __future__ import annotations

from typing import Any

import pytest

from det_keras.config import RESERVED_VARIABLES, Environment, load_experiment_config


def environment(variables: Any) -> Environment:
    raw = {"entrypoint": "x", "environment": {"environment_variables": variables}}
    return load_experiment_config(raw).config.environment


def test_later_entries_win_and_values_keep_their_equal_signs() -> None:
    result = environment(["A=1", "B=x=y", "A=2", "C=", "D"])

    assert result.environment_variables_for("cpu") == {"A": "2", "B": "x=y", "C": "", "D": ""}


def test_list_holds_for_every_device() -> None:
    result = environment(["A=1"])

    assert [result.environment_variables_for(device) for device in ("cpu", "cuda", "rocm")] == [
        {"A": "1"}
    ] * 3
    assert result.to_dict()["environment_variables"] == ["A=1"]


def test_mapping_selects_by_device() -> None:
    result = environment({"cpu": ["A=cpu"], "cuda": ["A=cuda"], "rocm": None})

    assert result.environment_variables_for("cpu") == {"A": "cpu"}
    assert result.environment_variables_for("gpu") == {"A": "cuda"}
    assert result.environment_variables_for("rocm") == {}


def test_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="'tpu' is not a device"):
        environment([]).environment_variables_for("tpu")


@pytest.mark.parametrize("name", ["DET_RETRY_CONFIG", "DET_DEBUG", "DET_LOG_WAIT_TIME", "DET_MY_OWN"])
def test_variables_that_users_may_set_are_not_reserved(name: str) -> None:
    assert environment([f"{name}=1"]).environment_variables_for("cpu") == {name: "1"}


def test_variables_of_the_master_are_reserved() -> None:
    assert {"DET_MASTER", "DET_SESSION_TOKEN", "DET_HPARAMS", "DET_TASK_ID"} <= RESERVED_VARIABLES
