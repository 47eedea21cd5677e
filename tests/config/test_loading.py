from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.config import ExperimentConfig, load_experiment_config, load_yaml
from det_keras.errors import ConfigError

SITE = {"type": "directory", "container_path": "/checkpoints"}
MINIMAL = "entrypoint: python3 train.py\nsearcher: {name: single, metric: m, max_length: {batches: 1}}"


def load(**fields: Any) -> ExperimentConfig:
    return load_experiment_config({"entrypoint": "x", **fields}, default_storage=SITE).config


def searcher(**fields: Any) -> dict[str, Any]:
    return {"name": "single", "metric": "loss", **fields}


def test_every_default_is_in_the_full_config() -> None:
    full = load_experiment_config(MINIMAL, default_storage=SITE).config.to_dict()

    assert full.pop("name").startswith("Experiment (")
    assert 0 <= full["reproducibility"].pop("experiment_seed") < 2**32
    assert full == {
        "description": None,
        "labels": [],
        "data": {},
        "workspace": "",
        "project": "",
        "entrypoint": "python3 train.py",
        "hyperparameters": {},
        "searcher": {
            "name": "single",
            "metric": "m",
            "smaller_is_better": True,
            "source_trial_id": None,
            "source_checkpoint_uuid": None,
            "max_length": {"batches": 1},
        },
        "resources": {
            "slots_per_trial": 1,
            "max_slots": None,
            "weight": 1,
            "priority": None,
            "resource_pool": "",
            "shm_size": None,
            "is_single_node": None,
            "devices": [],
            "native_parallel": False,
            "agent_label": None,
        },
        "max_restarts": 5,
        "reproducibility": {},
        "records_per_epoch": 0,
        "scheduling_unit": 100,
        "min_validation_period": {"batches": 0},
        "min_checkpoint_period": {"batches": 0},
        "perform_initial_validation": False,
        "checkpoint_policy": "best",
        "checkpoint_storage": {
            "type": "directory",
            "container_path": "/checkpoints",
            "save_experiment_best": 0,
            "save_trial_best": 1,
            "save_trial_latest": 1,
        },
        "optimizations": {
            "aggregation_frequency": 1,
            "average_aggregated_gradients": True,
            "average_training_metrics": True,
            "gradient_compression": False,
            "mixed_precision": "O0",
            "grad_updates_size_file": None,
            "tensor_fusion_threshold": 64,
            "tensor_fusion_cycle_time": 1,
            "auto_tune_tensor_fusion": False,
        },
        "environment": {
            "environment_variables": [],
            "image": None,
            "force_pull_image": False,
            "registry_auth": None,
            "add_capabilities": [],
            "drop_capabilities": [],
            "pod_spec": None,
            "proxy_ports": [],
            "ports": {},
        },
        "bind_mounts": [],
        "profiling": {"enabled": True, "begin_on_batch": 0, "end_after_batch": None, "sync_timings": True},
        "log_policies": [
            {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "action": None},
            {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*", "action": None},
        ],
        "retention_policy": None,
        "preemption_timeout": None,
        "debug": False,
        "integrations": None,
        "slurm": {},
        "pbs": {},
        "security": None,
        "tensorboard_storage": None,
        "data_layer": None,
        "internal": None,
    }


def test_minimal_config_has_no_notices() -> None:
    assert load_experiment_config(MINIMAL).notices == ()


def test_null_is_not_given_anywhere() -> None:
    nulls = {
        name: None
        for name in ExperimentConfig.names()
        if name not in ("entrypoint", "name", "reproducibility")
    }

    given_nulls = load(**nulls, name="n", reproducibility={"experiment_seed": 1, "deterministic_ops": None})
    assert given_nulls == load(name="n", reproducibility={"experiment_seed": 1})


def test_original_is_the_text_as_written_or_written_anew() -> None:
    text = "entrypoint: x # with a comment\n"

    assert load_experiment_config(text).original == text
    changed = load_experiment_config(text, overrides=["max_restarts=3"])
    assert load_yaml(changed.original) == {"entrypoint": "x", "max_restarts": 3}
    assert load_yaml(load_experiment_config({"entrypoint": "x"}).original) == {"entrypoint": "x"}


def test_overrides_are_applied_before_anything_is_checked() -> None:
    loaded = load_experiment_config("max_restarts: wrong", overrides=["entrypoint=a", "max_restarts=2"])

    assert loaded.config.max_restarts == 2


def test_config_used_alone_needs_nothing() -> None:
    text = "hyperparameters: {lr: {type: log, base: 10, minval: -3, maxval: -1}}"
    loaded = load_experiment_config(text, alone=True)

    assert loaded.config.entrypoint is None
    assert loaded.config.searcher.metric == "val_loss"
    assert loaded.notices == ()
    with pytest.raises(ValueError, match="nothing to execute"):
        loaded.config.command()


def test_config_used_alone_is_checked_all_the_same() -> None:
    with pytest.raises(ConfigError, match=r"hyperparameters\.lr\.type"):
        load_experiment_config({"hyperparameters": {"lr": {"type": "lgo"}}}, alone=True)


@pytest.mark.parametrize(
    ("entrypoint", "trial_class", "command"),
    [
        ("python3 train.py --x 1", None, ["sh", "-c", "python3 train.py --x 1"]),
        (["python3", "train.py"], None, ["python3", "train.py"]),
        (
            "model_def:MyTrial",
            "model_def:MyTrial",
            ["python", "-m", "det_keras.keras.generations.trial", "model_def:MyTrial"],
        ),
        ("a.b:C.D", "a.b:C.D", ["python", "-m", "det_keras.keras.generations.trial", "a.b:C.D"]),
        ("run:x --y", None, ["sh", "-c", "run:x --y"]),
        (["model_def:MyTrial"], None, ["model_def:MyTrial"]),
    ],
    ids=str,
)
def test_entrypoint_forms(entrypoint: Any, trial_class: str | None, command: list[str]) -> None:
    config = load(entrypoint=entrypoint, hyperparameters={"global_batch_size": 1})

    assert (config.trial_class, config.command()) == (trial_class, command)


def test_script_is_no_trial_class_even_after_a_round_trip() -> None:
    config = load_experiment_config("entrypoint_script: a:B").config
    again = ExperimentConfig.from_dict(json.loads(json.dumps(config.to_dict())))

    assert config.trial_class is again.trial_class is None
    assert again.command() == config.command() == ["sh", "-c", "a:B"]


def test_disabled_builtin_policy_stays_disabled_after_a_round_trip() -> None:
    config = load(log_policies=[{"name": "CUDA OOM"}])
    again = ExperimentConfig.from_dict(config.to_dict())

    assert [(policy.name, policy.pattern) for policy in again.log_policies] == [
        ("CUDA OOM", None),
        ("ECC Error", ".*uncorrectable ECC error encountered.*"),
    ]


def test_config_of_another_cluster_is_read_leniently(caplog: pytest.LogCaptureFixture) -> None:
    full = {
        "brand_new": {"x": 1},
        "entrypoint": "python3 t.py",
        "searcher": {"name": "custom", "metric": "m", "unknown": 3},
        "environment": {
            "environment_variables": {"cpu": [], "cuda": ["A=1"], "rocm": []},
            "image": {"cpu": "i"},
        },
        "resources": {"slots_per_trial": 2, "slots": None, "unheard": 1},
        "checkpoint_storage": {"type": "ceph", "save_trial_best": 3, "pool": "x"},
        "max_restarts": "many",
        "min_validation_period": {"batches": 7},
    }
    config = ExperimentConfig.from_dict(full)

    assert (config.searcher.name, config.searcher.metric) == ("custom", "m")
    assert config.resources.slots_per_trial == 2
    assert (config.checkpoint_storage.type, config.checkpoint_storage.save_trial_best) == ("ceph", 3)
    assert config.max_restarts == 5
    assert config.min_validation_period.value == 7
    assert "max_restarts" in caplog.text


def test_smallest_config_of_another_cluster_has_all_defaults() -> None:
    config = ExperimentConfig.from_dict({"name": "n", "reproducibility": {"experiment_seed": 3}})

    assert (
        config
        == load_experiment_config({"name": "n", "reproducibility": {"experiment_seed": 3}}, alone=True).config
    )


lengths = st.builds(
    lambda unit, value: {unit: value}, st.sampled_from(["batches", "records", "epochs"]), st.integers(1, 99)
)
asha = st.fixed_dictionaries(
    {"name": st.just("adaptive_asha"), "metric": st.just("m"), "max_trials": st.integers(1, 50)},
    optional={
        "mode": st.sampled_from(["aggressive", "standard", "conservative"]),
        "divisor": st.integers(2, 5) | st.floats(1.5, 9),
        "bracket_rungs": st.lists(st.integers(1, 4), max_size=3),
        "stop_once": st.booleans(),
    },
)
searchers = st.one_of(
    st.none(),
    st.builds(lambda length: searcher(max_length=length), lengths | st.integers(1, 9)),
    st.builds(lambda count: searcher(name="random", max_trials=count), st.integers(1, 9)),
    st.builds(lambda base, length: {**base, "max_length": length}, asha, lengths | st.integers(1, 9)),
    st.builds(
        lambda base, time: {**base, "time_metric": "batches", "max_time": time}, asha, st.integers(1, 9)
    ),
    st.builds(lambda steps: searcher(max_steps=steps), st.integers(1, 9)),
)
# No process can be given a null character.
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
configs = st.fixed_dictionaries(
    {"entrypoint": st.sampled_from(["x", "a.b:C"]) | st.lists(words, min_size=1, max_size=2)},
    optional={
        "searcher": searchers,
        "hyperparameters": st.dictionaries(st.text(min_size=1), st.integers() | st.text(), max_size=2),
        "labels": st.lists(st.text(max_size=3).filter(str.strip), max_size=3),
        "data": st.dictionaries(st.text(), st.integers() | st.none() | st.lists(st.text()), max_size=2),
        "min_checkpoint_period": lengths,
        "checkpoint_storage": st.sampled_from(
            [
                {"save_trial_best": 4},
                {"type": "s3", "bucket": "b", "secret_key": "k"},
                {"type": "shared_fs", "host_path": "/a"},
            ]
        ),
        "environment": st.sampled_from(
            [
                {"environment_variables": ["A=1", "B"]},
                {"environment_variables": {"gpu": ["A=1"]}, "ports": {"a": 1}},
            ]
        ),
        "log_policies": st.sampled_from(
            [[{"name": "CUDA OOM"}], [{"pattern": "x", "action": {"type": "exclude_node"}}]]
        ),
        "retention_policy": st.just({"log_retention_days": None}),
        "slurm": st.just({"gpu_type": "a100", "sbatch_args": ["-x"]}),
        "resources": st.sampled_from([{"slots": 3}, {"devices": ["/dev/a:/dev/b"], "shm_size": "4G"}]),
    },
)


@settings(max_examples=80, deadline=None)
@given(configs)
def test_full_config_reads_back_to_the_same_config(raw: dict[str, Any]) -> None:
    raw["hyperparameters"] = {**raw.get("hyperparameters", {}), "global_batch_size": 8}
    config = load_experiment_config(raw, default_storage=SITE).config
    full = json.loads(json.dumps(config.to_dict()))

    assert ExperimentConfig.from_dict(full) == config
    assert ExperimentConfig.from_dict(full).to_dict() == full
    # What `describe` prints can be submitted again.
    assert load_experiment_config(full, default_storage=SITE).config == config


def test_single_searcher_samples_its_space_and_says_so():
    space = {"a": {"type": "int", "minval": 1, "maxval": 3}, "b": {"c": {"type": "categorical", "vals": [1]}}}
    raw = {"entrypoint": "python3 t.py", "searcher": searcher(), "hyperparameters": {**space, "d": 7}}
    (notice,) = (text for text in load_experiment_config(raw).notices if "single" in text)
    assert notice == (
        "The searcher `single` runs one trial, with one sample of `a`, `b.c`. To try several, use `random`."
    )
