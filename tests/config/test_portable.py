"""What a Determined master accepts; its own schemas are the judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import expconf
from hypothesis import given
from hypothesis import strategies as st

from det_keras.config import (
    ExperimentConfig,
    dump_yaml,
    load_experiment_config,
    load_job_config,
    load_yaml,
    portable_changes,
)
from det_keras.errors import ConfigError

ROOT = Path(__file__).parents[2]
STORAGE = {"type": "shared_fs", "host_path": "/checkpoints"}
JOBS = ("job.yaml", "batch_inference.yaml")
FILES = sorted([*(ROOT / "configs").glob("*.yaml"), *(ROOT / "examples").glob("*/*.yaml")])
EXPERIMENTS = [path for path in FILES if path.name not in JOBS]
#: What the cluster adds: an image, and the storage.
SITE = {"environment": {"image": "determinedai/tensorflow"}, "checkpoint_storage": STORAGE}


def shown(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@expconf.needs_schemas
@pytest.mark.parametrize("path", EXPERIMENTS, ids=shown)
def test_what_is_submitted_passes_and_only_tpe_does_not(path):
    loaded = load_experiment_config(path.read_text())
    found = expconf.problems(
        {"name": "n", **loaded.portable, **SITE, "reproducibility": {"experiment_seed": 1}}
    )

    assert bool(found) == (path.name == "tpe.yaml"), found


@expconf.needs_schemas
@pytest.mark.parametrize("path", EXPERIMENTS, ids=shown)
def test_the_complete_config_of_our_master_passes_as_well(path):
    config = load_experiment_config(path.read_text(), default_storage=STORAGE).config.to_dict()
    config["environment"]["image"] = "determinedai/tensorflow"

    assert bool(expconf.problems(config)) == (path.name == "tpe.yaml")


def test_only_what_is_given_is_submitted():
    text = "entrypoint: a\nsearcher: {name: single, metric: m, max_length: 3}\nenvironment: {force_pull_image: true}"

    assert load_experiment_config(text).portable == {
        "entrypoint": "a",
        "searcher": {"name": "single", "metric": "m", "max_length": {"epochs": 3}},
        "environment": {"force_pull_image": True},
    }


lengths = st.builds(lambda unit, n: {unit: n}, st.sampled_from(["batches", "epochs"]), st.integers(1, 9))
variables = st.one_of(
    st.lists(st.sampled_from(["A=1", "B=y"])),
    st.fixed_dictionaries({}, optional={name: st.lists(st.just("A=1")) for name in ("cpu", "gpu")}),
)
configs = st.fixed_dictionaries(
    {
        "searcher": st.one_of(
            st.fixed_dictionaries(
                {"name": st.just("single"), "metric": st.sampled_from(["m", "y", "1.0"])},
                optional={"max_steps": st.integers(1, 9), "max_length": st.integers(1, 9)},
            ).filter(lambda searcher: len(searcher) < 4),
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["adaptive_asha", "asha", "adaptive_simple"]),
                    "metric": st.just("m"),
                    "max_trials": st.integers(1, 9),
                    "max_length": lengths,
                }
            ),
        )
    },
    optional={
        "name": st.sampled_from(["n", "off", "y", "1e5"]),
        "labels": st.one_of(st.lists(st.sampled_from("ab")), st.just({"a": None})),
        "reproducibility": st.fixed_dictionaries(
            {}, optional={"deterministic_ops": st.booleans(), "experiment_seed": st.integers(0, 9)}
        ),
        "optimizations": st.fixed_dictionaries(
            {}, optional={"divergence_check_period": st.integers(0, 200), "aggregation_frequency": st.just(2)}
        ),
        "profiling": st.fixed_dictionaries({}, optional={"layers": st.booleans(), "enabled": st.booleans()}),
        "environment": st.fixed_dictionaries(
            {},
            optional={
                "environment_variables": variables,
                "python": st.sampled_from(["/usr/bin/python3", "~/y"]),
                "pip": st.lists(st.sampled_from(["pandas<3", "a[b]; python_version < '4'", "./off"])),
                "requirements": st.sampled_from(["requirements.txt", "1.0", "off"]),
            },
        ),
        "resources": st.fixed_dictionaries(
            {}, optional={"slots": st.integers(0, 4), "shm_size": st.just("4G")}
        ),
        "log_policies": st.lists(
            st.fixed_dictionaries({"pattern": st.just("a"), "action": st.just({"type": "cancel_retries"})}),
            max_size=1,
        ),
        "checkpoint_storage": st.sampled_from(
            [
                {"save_trial_best": 2},
                {"type": "s3", "bucket": "b"},
                {"type": "directory", "container_path": "/x"},
            ]
        ),
        "hyperparameters": st.sampled_from(
            [{}, {"a": 1, "b": {"c": {"type": "int", "minval": 1, "maxval": 2}}}]
        ),
        "debug": st.booleans(),
    },
).map(lambda config: {"entrypoint_script": "a:b", "hyperparameters": {}, **config})


@expconf.needs_schemas
@given(configs)
def test_all_spellings_pass_in_both_forms_and_mean_the_same(raw):
    loaded = load_experiment_config(raw, default_storage=STORAGE)
    complete = loaded.config.to_dict()
    site = {
        "name": "n",
        **loaded.portable,
        "checkpoint_storage": {**STORAGE, **loaded.portable.get("checkpoint_storage", {})},
        "environment": {**loaded.portable.get("environment", {}), "image": "i"},
        "reproducibility": {"experiment_seed": 1, **loaded.portable.get("reproducibility", {})},
    }
    if site["checkpoint_storage"]["type"] != "shared_fs":
        del site["checkpoint_storage"]["host_path"]
    complete["environment"]["image"] = "i"

    assert not expconf.problems(site)
    assert not expconf.problems(complete)
    again = load_experiment_config(dump_yaml(loaded.portable), default_storage=STORAGE).config
    assert again.optimizations == loaded.config.optimizations
    assert again.reproducibility.deterministic_ops == loaded.config.reproducibility.deterministic_ops
    assert again.command() == loaded.config.command() == ["sh", "-c", "a:b"]
    assert again.searcher == loaded.config.searcher
    assert again.environment == loaded.config.environment
    assert ExperimentConfig.from_dict(loaded.config.to_dict()) == loaded.config


@pytest.mark.parametrize("text", ["y", "N", "off", "1.0", "1e5", ".inf", "~", "2026-01-01"])
def test_text_stays_text_for_a_yaml_1_1_parser(text):
    # PyYAML reads `y` as text, but the parser of a Determined master reads a boolean.
    line = dump_yaml({"a": text})

    assert line in (f"a: '{text}'\n", f'a: "{text}"\n')
    assert load_yaml(line) == {"a": text}


@pytest.mark.parametrize("name", ["DET_KERAS_DETERMINISTIC_OPS", "DET_KERAS_DIVERGENCE_CHECK_PERIOD"])
def test_a_wrong_value_of_a_variable_is_named_by_its_field(name):
    with pytest.raises(ConfigError, match=r"deterministic_ops|divergence_check_period"):
        load_experiment_config(
            {"entrypoint": "a", "environment": {"environment_variables": [f"{name}=maybe"]}}
        )


def test_a_field_is_stronger_than_its_variable():
    config = load_experiment_config(
        {
            "entrypoint": "a",
            "reproducibility": {"deterministic_ops": False},
            "environment": {"environment_variables": ["DET_KERAS_DETERMINISTIC_OPS=true"]},
        }
    ).config

    assert not config.reproducibility.deterministic_ops


def test_of_two_variables_the_later_counts():
    entries = [f"DET_KERAS_DETERMINISTIC_OPS={value}" for value in ("true", "false", "true")]
    for count, expected in ((1, True), (2, False), (3, True)):
        raw = {"entrypoint": "a", "environment": {"environment_variables": entries[:count]}}
        assert load_experiment_config(raw).config.reproducibility.deterministic_ops is expected


def test_a_change_back_to_the_default_is_sent():
    current = load_experiment_config(
        "entrypoint: a\nreproducibility: {deterministic_ops: true}"
    ).config.to_dict()
    changes = portable_changes({"reproducibility": {"deterministic_ops": False}}, current)
    layers = [current["environment"], changes["environment"]]
    entries = [entry for layer in layers for entry in layer["environment_variables"]]
    raw = {"entrypoint": "a", "environment": {"environment_variables": entries}}
    assert not load_experiment_config(raw).config.reproducibility.deterministic_ops


def test_a_section_with_hidden_values_is_not_sent_back():
    section = {
        "type": "s3",
        "bucket": "b",
        "access_key": "********",
        "secret_key": "********",
        "prefix": None,
    }
    with pytest.raises(ConfigError, match=r"secret_key.*Give it again"):
        portable_changes({"checkpoint_storage": {"save_trial_best": 2}}, {"checkpoint_storage": section})
    given = {"access_key": "a", "secret_key": "s", "save_trial_best": 2}
    changed = portable_changes({"checkpoint_storage": given}, {"checkpoint_storage": section})
    assert changed["checkpoint_storage"] == {"type": "s3", "bucket": "b", **given}


def test_a_job_travels_in_a_variable_of_a_generic_task():
    loaded = load_job_config(
        "entrypoint_script: a:b\nslots: 2\ndata: {x: [1]}\nname: n".replace(
            "slots: 2", "resources: {slots: 2}"
        )
    )
    (entry,) = loaded.portable["environment"]["environment_variables"]
    name, _, text = entry.partition("=")

    assert set(loaded.portable) == {"entrypoint", "environment", "resources"}
    assert loaded.portable["entrypoint"] == ["sh", "-c", "a:b"]
    assert loaded.portable["resources"] == {"slots": 2}
    assert (name, json.loads(text)["data"]) == ("DET_TASK_CONFIG", {"x": [1]})
