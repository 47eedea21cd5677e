from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from det_keras.config import load_experiment_config, load_job_config


def notices(**fields: Any) -> tuple[str, ...]:
    raw = {"entrypoint": "x", "searcher": {"name": "single", "metric": "loss"}, **fields}
    return load_experiment_config(raw).notices


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        (
            {"resources": {"shm_size": 2, "resource_pool": "gpu"}},
            ["resources.resource_pool", "resources.shm_size"],
        ),
        ({"resources": {"shm_size": "4G"}}, ["resources.shm_size"]),
        ({"resources": {"is_single_node": False}}, ["resources.is_single_node"]),
        (
            {"resources": {"devices": ["/dev/a:/dev/b"], "native_parallel": True}},
            ["resources.devices", "resources.native_parallel"],
        ),
        ({"environment": {"image": "i"}}, ["environment.image"]),
        (
            {"environment": {"add_capabilities": ["X"], "pod_spec": {"any": [1]}}},
            ["environment.add_capabilities", "environment.pod_spec"],
        ),
        ({"optimizations": {"auto_tune_tensor_fusion": True}}, ["optimizations.auto_tune_tensor_fusion"]),
        ({"slurm": {"gpu_type": "a"}, "pbs": {"slots_per_node": 2}}, ["slurm", "pbs"]),
        ({"integrations": {"pachyderm": {"x": 1}}}, ["integrations.pachyderm"]),
        ({"security": {"kerberos": {"config_file": "x"}}}, ["security"]),
        (
            {"data_layer": {"anything": 1}, "tensorboard_storage": {"a": 1}},
            ["tensorboard_storage", "data_layer"],
        ),
        (
            {"profiling": {"begin_on_batch": 2, "end_after_batch": 9, "sync_timings": False}},
            ["profiling.begin_on_batch", "profiling.end_after_batch", "profiling.sync_timings"],
        ),
        ({"profiling": {"enabled": False}}, []),
        ({"resources": {"weight": 1, "resource_pool": ""}}, []),
        ({"resources": {"priority": 3, "slots_per_trial": 0}, "debug": True}, []),
    ],
    ids=str,
)
def test_each_field_without_effect_is_said_once(fields: dict[str, Any], paths: list[str]) -> None:
    assert list(notices(**fields)) == [f"`{path}` has no effect here." for path in paths]


def test_debug_has_an_effect_in_trials_and_none_in_jobs() -> None:
    assert load_job_config({"entrypoint": "x", "debug": True}).notices == ("`debug` has no effect here.",)
    assert notices(debug=True) == ()


@pytest.mark.parametrize(
    "metric", ["val_accuracy", "AUC", "val_f1_score", "precision_at_k", "recall", "mean_iou"]
)
def test_metric_of_which_more_is_better_is_asked_about(metric: str) -> None:
    (notice,) = notices(searcher={"name": "single", "metric": metric})

    assert metric in notice
    assert "set it to false" in notice


@pytest.mark.parametrize("smaller", [True, False])
def test_direction_that_was_given_is_not_asked_about(smaller: bool) -> None:
    assert notices(searcher={"name": "single", "metric": "accuracy", "smaller_is_better": smaller}) == ()


def test_direction_is_never_flipped() -> None:
    raw = {"entrypoint": "x", "searcher": {"name": "single", "metric": "accuracy"}}

    assert load_experiment_config(raw).config.searcher.smaller_is_better is True


def test_large_grid_is_announced() -> None:
    axis = {"type": "int", "minval": 1, "maxval": 50, "count": 50}
    raw = {"searcher": {"name": "grid", "metric": "m"}, "hyperparameters": {"a": axis, "b": axis}}

    assert notices(**raw) == ("The grid of `hyperparameters` has 2500 points; each will be a trial.",)


def test_variable_without_value_is_announced() -> None:
    (notice,) = notices(environment={"environment_variables": ["A=1", "FLAG"]})

    assert "'FLAG' has no `=`" in notice


def test_mounts_say_what_the_script_will_not_see(tmp_path: Path) -> None:
    mounts = [
        {"host_path": str(tmp_path), "container_path": "/data"},
        {"host_path": str(tmp_path), "container_path": str(tmp_path)},
        {"host_path": "/does/not/exist", "container_path": "/x"},
    ]
    found = notices(bind_mounts=mounts)

    assert len(found) == 2
    assert "`bind_mounts` has no effect" in found[0]
    assert f"will not see /data. It finds the same files at {tmp_path}" in found[1]


def test_policy_without_pattern_but_with_action_is_announced() -> None:
    assert "never taken" in notices(log_policies=[{"name": "a", "action": "cancel_retries"}])[0]


@pytest.mark.parametrize(
    ("minval", "maxval", "meant"),
    [(1e-5, 1e-1, "-5"), (0.001, 2, "-3"), (-5, -1, None), (0, 3, None), (1, 3, None)],
)
def test_value_in_the_place_of_an_exponent_is_noticed(
    minval: float, maxval: float, meant: str | None
) -> None:
    rate = {"type": "log", "base": 10, "minval": minval, "maxval": maxval}
    found = notices(
        hyperparameters={"opt": {"rate": rate}},
        searcher={"name": "random", "metric": "loss", "max_trials": 2},
    )
    told = [notice for notice in found if "are exponents" in notice]
    assert len(told) == (meant is not None)
    assert all("`hyperparameters.opt.rate`" in notice and f"`minval: {meant}`" in notice for notice in told)
