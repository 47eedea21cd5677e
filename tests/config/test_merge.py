from __future__ import annotations

from typing import Any

import pytest

from det_keras.config import load_experiment_config
from det_keras.config.merge import merge_layers

SHARED = {"type": "shared_fs", "host_path": "/mnt", "save_trial_best": 3}


@pytest.mark.parametrize(
    ("higher", "lower", "merged"),
    [
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 1, "b": 3}),
        ({"a": None}, {"a": 2}, {"a": 2}),
        ({"a": False}, {"a": True}, {"a": False}),
        ({"a": {"x": {"y": 1}}}, {"a": {"x": {"z": 2}, "w": 3}}, {"a": {"x": {"y": 1, "z": 2}, "w": 3}}),
        ({"a": [1]}, {"a": [2]}, {"a": [1]}),
        ({"a": 1}, {"a": {"b": 2}}, {"a": 1}),
        ({"entrypoint": ["a"]}, {"entrypoint": ["b"]}, {"entrypoint": ["a"]}),
        ({"data": {1: "a"}}, {"data": {"1": "b", "2": "c"}}, {"data": {1: "a", "2": "c"}}),
        ({"labels": ["a", "b"]}, {"labels": ["b", "c"]}, {"labels": ["a", "b", "c"]}),
    ],
    ids=str,
)
def test_mappings_merge_and_the_rest_is_replaced(higher: Any, lower: Any, merged: Any) -> None:
    assert merge_layers(higher, lower) == merged


def test_mounts_append_unless_the_container_path_is_taken() -> None:
    mine = {"host_path": "/a", "container_path": "/x"}
    taken = {"host_path": "/b", "container_path": "/x"}
    free = {"host_path": "/b", "container_path": "/y"}

    assert merge_layers({"bind_mounts": [mine]}, {"bind_mounts": [taken, free]}) == {
        "bind_mounts": [mine, free]
    }


def test_devices_append_in_both_spellings() -> None:
    higher = {"resources": {"devices": ["/dev/a:/x"]}}
    lower = {"resources": {"devices": [{"host_path": "/dev/b", "container_path": "/x"}, "/dev/c:/y:r"]}}

    assert merge_layers(higher, lower) == {"resources": {"devices": ["/dev/a:/x", "/dev/c:/y:r"]}}


@pytest.mark.parametrize(
    ("higher", "lower", "merged"),
    [
        (["A=1"], ["A=2", "B=2"], ["A=2", "B=2", "A=1"]),
        ({"cpu": ["A=1"]}, {"cpu": ["A=2"], "cuda": ["C=3"]}, {"cpu": ["A=2", "A=1"], "cuda": ["C=3"]}),
        ({"cpu": ["A=1"]}, ["A=2"], {"cpu": ["A=2", "A=1"], "cuda": ["A=2"], "rocm": ["A=2"]}),
    ],
    ids=str,
)
def test_variables_append_with_the_higher_last(higher: Any, lower: Any, merged: Any) -> None:
    result = merge_layers(
        {"environment": {"environment_variables": higher}}, {"environment": {"environment_variables": lower}}
    )

    assert result == {"environment": {"environment_variables": merged}}


def test_log_policies_merge_by_name() -> None:
    higher = [{"name": "a", "pattern": "mine"}, {"pattern": "old", "action": "cancel_retries"}]
    lower = [
        {"name": "a", "pattern": "theirs"},
        {"name": "b", "pattern": "b"},
        {"pattern": "other", "action": None},
    ]

    assert merge_layers({"log_policies": higher}, {"log_policies": [*lower, higher[1]]}) == {
        "log_policies": [*higher, *lower[1:]]
    }


@pytest.mark.parametrize(
    ("storage", "merged"),
    [
        ({"save_trial_best": 1}, {**SHARED, "save_trial_best": 1}),
        ({"type": "shared_fs", "storage_path": "x"}, {**SHARED, "storage_path": "x"}),
        ({"type": "s3", "bucket": "b"}, {"type": "s3", "bucket": "b", "save_trial_best": 3}),
    ],
    ids=["without type", "same type", "other type"],
)
def test_storage_of_another_type_keeps_only_what_all_types_have(
    storage: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert merge_layers({"checkpoint_storage": storage}, {"checkpoint_storage": SHARED}) == {
        "checkpoint_storage": merged
    }


def test_searcher_of_another_method_keeps_only_what_all_methods_have() -> None:
    random = {"name": "random", "max_trials": 3, "smaller_is_better": False}

    assert merge_layers({"searcher": {"metric": "m"}}, {"searcher": random}) == {
        "searcher": {**random, "metric": "m"}
    }
    assert merge_layers({"searcher": {"name": "grid"}}, {"searcher": random}) == {
        "searcher": {"name": "grid", "smaller_is_better": False}
    }


def test_hyperparameters_merge_only_where_both_are_nested() -> None:
    higher = {"lr": {"type": "const", "val": 1}, "opt": {"beta": 1}, "x": 5}
    lower = {"lr": {"type": "log"}, "opt": {"beta": 2, "gamma": 3}, "x": {"nested": 1}, "y": 6}

    assert merge_layers({"hyperparameters": higher}, {"hyperparameters": lower}) == {
        "hyperparameters": {"lr": {"type": "const", "val": 1}, "opt": {"beta": 1, "gamma": 3}, "x": 5, "y": 6}
    }


def test_nested_hyperparameters_meet_by_the_text_of_their_names() -> None:
    higher = {"layers": {1: 64, False: {2: None}}}
    lower = {"layers": {"1": 32, "false": {"2": 3, "4": 5}, "6": 7}}

    assert merge_layers({"hyperparameters": higher}, {"hyperparameters": lower}) == {
        "hyperparameters": {"layers": {1: 64, False: {2: None, "4": 5}, "6": 7}}
    }


@pytest.mark.parametrize(
    "name", ["labels", "bind_mounts", "log_policies", "searcher", "hyperparameters", "environment"]
)
def test_values_of_a_wrong_type_are_left_for_validation(name: str) -> None:
    assert merge_layers({name: 3}, {name: [{"name": "x"}]}) == {name: 3}


def test_inputs_stay_as_they_are() -> None:
    higher, lower = {"a": {"b": 1}}, {"a": {"c": 2}}
    merge_layers(higher, lower)

    assert (higher, lower) == ({"a": {"b": 1}}, {"a": {"c": 2}})


def test_layers_fill_up_in_their_order_in_any_era() -> None:
    template = {"searcher": {"name": "single", "metric": "loss", "max_steps": 3}, "max_restarts": 1}
    workspace = {"max_restarts": 2, "debug": True}
    loaded = load_experiment_config("entrypoint: x", layers=[template, workspace])

    assert loaded.config.max_restarts == 1
    assert loaded.config.debug
    assert loaded.config.to_dict()["searcher"]["max_length"] == {"batches": 300}


def test_length_is_taken_whole_in_whatever_unit() -> None:
    lower = {
        "searcher": {
            "name": "adaptive",
            "metric": "m",
            "max_length": {"batches": 9},
            "budget": {"batches": 99},
        },
        "min_validation_period": {"batches": 5},
        "min_checkpoint_period": {"records": 5},
    }
    higher = {
        "searcher": {"max_length": {"epochs": 2}, "budget": {"epochs": 20}},
        "min_validation_period": {"epochs": 1},
        "min_checkpoint_period": {"epochs": 3},
    }

    assert merge_layers(higher, lower) == {
        **higher,
        "searcher": {"name": "adaptive", "metric": "m", **higher["searcher"]},
    }


@pytest.mark.parametrize(
    ("higher", "lower", "name"),
    [
        ({"description": "new words"}, {"name": "original"}, "original"),
        ({"description": "new words"}, {"description": "old words"}, "new words"),
        ({}, {"description": "old words"}, "old words"),
        ({"name": "mine"}, {"description": "old words"}, "mine"),
    ],
    ids=str,
)
def test_description_gives_the_name_only_where_no_layer_has_one(
    higher: dict[str, str], lower: dict[str, str], name: str
) -> None:
    assert load_experiment_config({"entrypoint": "x", **higher}, layers=[lower]).config.name == name


@pytest.mark.parametrize(
    ("higher", "lower"), [({"b": None}, ["a"]), (["b"], {"a": 1}), ({"b": None}, {"a": None})], ids=str
)
def test_labels_unite_in_both_spellings(higher: Any, lower: Any) -> None:
    loaded = load_experiment_config({"entrypoint": "x", "labels": higher}, layers=[{"labels": lower}])

    assert loaded.config.labels == ("a", "b")


SCRIPT = {"entrypoint_script": "python3 train.py"}
CLASS = {"entrypoint": "model_def:Trial"}
AZURE = {"type": "azure", "container": "c"}
ASHA = {"name": "adaptive_asha", "metric": "m", "max_trials": 4}
TIME = {"time_metric": "epochs", "max_time": 64}


@pytest.mark.parametrize(
    ("higher", "lower", "merged"),
    [
        (CLASS, SCRIPT, CLASS),
        (SCRIPT, CLASS, SCRIPT),
        ({"entrypoint": None}, SCRIPT, {"entrypoint": None, **SCRIPT}),
        (
            {"searcher": {"max_length": {"batches": 9}}},
            {"searcher": {**ASHA, **TIME}},
            {"searcher": {**ASHA, "max_length": {"batches": 9}}},
        ),
        (
            {"searcher": {"max_time": 32}},
            {"searcher": {**ASHA, **TIME, "max_length": {"epochs": 64}}},
            {"searcher": {**ASHA, "time_metric": "epochs", "max_time": 32}},
        ),
        (
            {"searcher": {"source_trial_id": 3}},
            {"searcher": {"name": "single", "source_checkpoint_uuid": "u"}},
            {"searcher": {"name": "single", "source_trial_id": 3}},
        ),
        (
            {"checkpoint_storage": {"connection_string": "s"}},
            {"checkpoint_storage": {**AZURE, "account_url": "u", "credential": "c"}},
            {"checkpoint_storage": {**AZURE, "connection_string": "s"}},
        ),
    ],
    ids=str,
)
def test_of_fields_that_exclude_each_other_the_higher_remains(higher: Any, lower: Any, merged: Any) -> None:
    assert merge_layers(higher, lower) == merged


@pytest.mark.parametrize(("lower", "higher"), [(SCRIPT, CLASS), (CLASS, SCRIPT)], ids=str)
def test_config_with_another_entrypoint_over_a_full_one_can_be_submitted_again(
    lower: dict[str, Any], higher: dict[str, Any]
) -> None:
    batch_size = {"hyperparameters": {"global_batch_size": 8}}
    below = load_experiment_config({**lower, **batch_size}).config.to_dict()
    config = load_experiment_config(higher, layers=[below]).config

    assert config.trial_class == higher.get("entrypoint")
    assert load_experiment_config(config.to_dict()).config == config


def test_site_storage_is_used_and_adjusted() -> None:
    site = {"type": "directory", "container_path": "/data"}
    config = load_experiment_config(
        "entrypoint: x\ncheckpoint_storage: {save_trial_best: 0}", default_storage=site
    ).config

    assert dict(config.checkpoint_storage) == {
        "type": "directory",
        "container_path": "/data",
        "save_experiment_best": 0,
        "save_trial_best": 0,
        "save_trial_latest": 1,
    }


def test_storage_of_the_config_replaces_that_of_the_site() -> None:
    site = {"type": "directory", "container_path": "/data"}
    text = "entrypoint: x\ncheckpoint_storage: {type: shared_fs, host_path: /mnt}"
    storage = load_experiment_config(text, default_storage=site).config.checkpoint_storage

    assert (storage.type, storage["host_path"], storage.get("storage_path"), storage.container_path) == (
        "shared_fs",
        "/mnt",
        None,
        None,
    )
