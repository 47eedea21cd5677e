from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from det_keras.config import ExperimentConfig, JobConfig, load_experiment_config, load_job_config
from det_keras.config.secrets import masked
from det_keras.errors import ConfigError


def problems(raw: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_experiment_config(raw)
    return {problem.path: problem.message for problem in caught.value.problems}


def searcher(**fields: Any) -> dict[str, Any]:
    return {"name": "single", "metric": "loss", **fields}


UUID = "0d4a3a6c-5d0b-4f6a-8a55-5b2f1a5c7b11"


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"serchaer": 1}, "serchaer", "Did you mean `searcher`?"),
        ({"max_restart": 1}, "max_restart", "Did you mean `max_restarts`?"),
        ({"resources": {"slotsper_trial": 1}}, "resources.slotsper_trial", "Did you mean `slots_per_trial`?"),
        ({"searcher": searcher(max_trails=3)}, "searcher.max_trails", "Did you mean `max_trials`?"),
        ({"searcher": searcher(max_trials=3)}, "searcher.max_trials", "is not valid for `name: single`"),
        ({"searcher": searcher(divisor=3)}, "searcher.divisor", "`adaptive_asha`, `async_halving`"),
        (
            {"searcher": searcher(max_length={"batches": 1, "epochs": 2})},
            "searcher.max_length",
            "exactly one of",
        ),
        (
            {"searcher": searcher(max_length={"batches": 0})},
            "searcher.max_length.batches",
            "at least 1, received 0",
        ),
        ({"searcher": searcher(max_length={"batches": 1.5})}, "searcher.max_length.batches", "received 1.5"),
        (
            {"reproducibility": {"virtual_workers": 6}},
            "reproducibility.virtual_workers",
            "must be a power of two, such as 4, received 6",
        ),
        (
            {"reproducibility": {"virtual_workers": 4}, "resources": {"slots_per_trial": 3}},
            "reproducibility.virtual_workers",
            "is 4, which 3 workers (`resources.slots_per_trial`) cannot share",
        ),
        (
            {"reproducibility": {"virtual_workers": 2}, "optimizations": {"gradient_compression": True}},
            "reproducibility.virtual_workers",
            "cannot be used with `optimizations.gradient_compression`",
        ),
        (
            {"optimizations": {"collective_engine": "mpi"}},
            "optimizations.collective_engine",
            "must be one of `auto`, `horovod`, `builtin`",
        ),
        ({"searcher": searcher(name="rnadom")}, "searcher.name", "Did you mean `random`?"),
        ({"searcher": {"metric": "m"}}, "searcher.name", "is required. Give one of `single`"),
        ({"searcher": {"name": "single"}}, "searcher.metric", "is required"),
        ({"searcher": searcher(metric=3)}, "searcher.metric", "must be text, received 3"),
        ({"searcher": searcher(name="random")}, "searcher.max_trials", "is required"),
        (
            {"searcher": searcher(name="random", max_trials=0)},
            "searcher.max_trials",
            "at least 1, received 0",
        ),
        (
            {"searcher": searcher(name="adaptive_asha", max_trials=2)},
            "searcher",
            "`adaptive_asha` requires a length",
        ),
        (
            {"searcher": searcher(name="adaptive_asha", max_trials=2, max_time=4)},
            "searcher.time_metric",
            "is required with `max_time: 4`",
        ),
        (
            {"searcher": searcher(name="adaptive_asha", max_trials=2, time_metric="epochs")},
            "searcher.max_time",
            "is required with `time_metric: epochs`",
        ),
        (
            {"searcher": searcher(name="adaptive_asha", max_trials=2, max_length=4, mode="agressive")},
            "searcher.mode",
            "Did you mean `aggressive`?",
        ),
        (
            {"searcher": searcher(name="adaptive_asha", max_trials=2, max_length=4, divisor=1)},
            "searcher.divisor",
            "must be a number above 1, received 1",
        ),
        (
            {"searcher": searcher(name="adaptive_asha", max_trials=2, max_length=4, bracket_rungs=[2, 0])},
            "searcher.bracket_rungs[1]",
            "at least 1, received 0",
        ),
        (
            {"searcher": searcher(name="async_halving", max_trials=2, max_length={"epochs": 4})},
            "searcher.num_rungs",
            "is required",
        ),
        (
            {"searcher": searcher(source_trial_id=1, source_checkpoint_uuid=UUID)},
            "searcher",
            "exclude each other",
        ),
        (
            {"searcher": searcher(source_checkpoint_uuid="abc")},
            "searcher.source_checkpoint_uuid",
            "must be the UUID",
        ),
        ({"searcher": [1]}, "searcher", "must be a mapping"),
        (
            {"hyperparameters": {"a": {"type": "int", "minval": 3, "maxval": 3}}},
            "hyperparameters.a",
            "must be below",
        ),
        (
            {
                "hyperparameters": {
                    "a": {"type": "int", "minval": 1, "maxval": 3},
                    "b": {"c": {"type": "double", "minval": 1, "maxval": 3}},
                },
                "searcher": searcher(name="grid"),
            },
            "hyperparameters",
            "a grid search requires a `count` for `a`, `b.c`",
        ),
        (
            {
                "hyperparameters": {
                    name: {"type": "int", "minval": 1, "maxval": 999, "count": 999} for name in "ab"
                },
                "searcher": searcher(name="grid"),
            },
            "hyperparameters",
            "has 998001 points",
        ),
        ({"hyperparameters": {3: 1}}, "hyperparameters.3", "Put it in quotes"),
        ({"hyperparameters": {"global_batch_size": 0}}, "hyperparameters.global_batch_size", "at least 1"),
        ({"entrypoint": "a\0b"}, "entrypoint", "must not contain a null character"),
        ({"entrypoint": ["a", "a\0b"]}, "entrypoint[1]", "must not contain a null character"),
        ({"entrypoint": "m:Trial"}, "hyperparameters.global_batch_size", "is required for a trial class"),
        (
            {"optimizations": {"mixed_precision": 0}},
            "optimizations.mixed_precision",
            "the letter O, not a zero",
        ),
        (
            {"optimizations": {"mixed_precision": "01"}},
            "optimizations.mixed_precision",
            "the letter O, not a zero",
        ),
        ({"entrypoint_script": "y"}, "entrypoint_script", "both given"),
        ({"entrypoint": None}, "entrypoint", "an entrypoint is required"),
        ({"entrypoint": ""}, "entrypoint", "must be a command"),
        ({"entrypoint": []}, "entrypoint", "must be a command"),
        ({"entrypoint": ["python3", 3]}, "entrypoint[1]", "Put it in quotes"),
        ({"workspace": "w"}, "workspace", "give both or neither"),
        ({"project": "p"}, "project", "give both or neither"),
        (
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "a"}},
            "checkpoint_storage.host_path",
            "start with `/`",
        ),
        (
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "storage_path": "../b"}},
            "checkpoint_storage.storage_path",
            "'../b' is not inside",
        ),
        (
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "storage_path": "/ab"}},
            "checkpoint_storage.storage_path",
            "not inside",
        ),
        ({"checkpoint_storage": {"type": "shared_fs"}}, "checkpoint_storage.host_path", "is required"),
        ({"checkpoint_storage": {"type": "directory"}}, "checkpoint_storage.container_path", "is required"),
        ({"checkpoint_storage": {"type": "hdfs"}}, "checkpoint_storage.type", "`hdfs` was removed"),
        (
            {"checkpoint_storage": {"type": "hdfs", "hdfs_url": "h", "hdfs_path": "p", "user": "u"}},
            "checkpoint_storage.type",
            "`hdfs` was removed",
        ),
        (
            {"checkpoint_storage": {"type": "gcs", "bucket": "b", "user": "u"}},
            "checkpoint_storage.user",
            "unknown key",
        ),
        ({"checkpoint_storage": {"type": "s4", "bucket": "x"}}, "checkpoint_storage.type", "must be one of"),
        ({"checkpoint_storage": {"bucket": "x"}}, "checkpoint_storage.bucket", "requires `type`"),
        (
            {"checkpoint_storage": {"type": "gcs", "bucket": "x", "prefix": "a/../b"}},
            "checkpoint_storage.prefix",
            "`..`",
        ),
        ({"checkpoint_storage": {"type": "azure", "container": "c"}}, "checkpoint_storage", "exactly one of"),
        (
            {
                "checkpoint_storage": {
                    "type": "azure",
                    "container": "c",
                    "connection_string": "x",
                    "account_url": "y",
                }
            },
            "checkpoint_storage",
            "exactly one of",
        ),
        (
            {
                "checkpoint_storage": {
                    "type": "azure",
                    "container": "c",
                    "connection_string": "x",
                    "credential": "y",
                }
            },
            "checkpoint_storage.credential",
            "belongs to `account_url`",
        ),
        ({"checkpoint_storage": {"save_trial_best": -1}}, "checkpoint_storage.save_trial_best", "at least 0"),
        ({"checkpoint_policy": "bets"}, "checkpoint_policy", "Did you mean `best`?"),
        ({"log_policies": [{"name": "a", "pattern": "x"}] * 2}, "log_policies[1].name", "Names must differ"),
        (
            {"log_policies": [{"name": "a", "pattern": "("}]},
            "log_policies[0].pattern",
            "'(' is not a regular expression in RE2's syntax: missing ): (.",
        ),
        (
            {"log_policies": [{"name": "a", "pattern": r"(a)\1"}]},
            "log_policies[0].pattern",
            r"'(a)\\1' is not a regular expression in RE2's syntax: invalid escape sequence: \1. RE2 has no back",
        ),
        (
            {"log_policies": [{"name": "a", "pattern": "a(?!b)"}]},
            "log_policies[0].pattern",
            "'a(?!b)' is not a regular expression in RE2's syntax: invalid perl operator: (?!. RE2 has no back",
        ),
        ({"log_policies": [{"pattern": "x"}]}, "log_policies[0]", "requires a `name`"),
        ({"log_policies": [{"name": "a", "action": "retry"}]}, "log_policies[0].action", "must be one of"),
        (
            {"bind_mounts": [{"host_path": "a", "container_path": "/b"}]},
            "bind_mounts[0].host_path",
            "start with `/`",
        ),
        (
            {"bind_mounts": [{"host_path": "/a", "container_path": "."}]},
            "bind_mounts[0].container_path",
            "must not be `.`",
        ),
        ({"bind_mounts": [{"host_path": "/a"}]}, "bind_mounts[0].container_path", "is required"),
        (
            {"resources": {"slots_per_trial": 4, "max_slots": 2}},
            "resources.max_slots",
            "fewer than the 4 slots",
        ),
        ({"resources": {"priority": 100}}, "resources.priority", "from 1 to 99, received 100"),
        ({"resources": {"weight": 0}}, "resources.weight", "above 0"),
        ({"resources": {"shm_size": "4 gigs"}}, "resources.shm_size", "such as `4G`"),
        ({"resources": {"devices": ["/dev/a"]}}, "resources.devices[0]", "`host:container`"),
        ({"resources": {"devices": ["a:b:c:d"]}}, "resources.devices[0]", "`host:container`"),
        ({"max_restarts": True}, "max_restarts", "received True"),
        ({"max_restarts": "3"}, "max_restarts", "Remove the quotes"),
        ({"max_restarts": -1}, "max_restarts", "at least 0, received -1"),
        ({"max_restarts": 2.5}, "max_restarts", "received 2.5"),
        ({"max_restarts": 2**63}, "max_restarts", "whole number"),
        ({"min_checkpoint_period": {"epochs": 2**63}}, "min_checkpoint_period.epochs", "whole number"),
        ({"resources": {"weight": 10**400}}, "resources.weight", "above 0"),
        ({"debug": "yes"}, "debug", "must be true or false"),
        ({"name": 3}, "name", "must be text, received 3. Put it in quotes."),
        ({"name": ""}, "name", "must not be empty"),
        ({"data": [1]}, "data", "must be a mapping"),
        ({"data": {"x": {"y": {1, 2}}}}, "data.x.y", "is a set"),
        (
            {"reproducibility": {"experiment_seed": 2**32}},
            "reproducibility.experiment_seed",
            "from 0 to 4294967295",
        ),
        ({"records_per_epoch": -1}, "records_per_epoch", "at least 0"),
        ({"scheduling_unit": 0}, "scheduling_unit", "at least 1"),
        (
            {"profiling": {"begin_on_batch": 5, "end_after_batch": 4}},
            "profiling.end_after_batch",
            "before `begin_on_batch`",
        ),
        ({"retention_policy": {}}, "retention_policy.log_retention_days", "is required"),
        (
            {"retention_policy": {"log_retention_days": -2}},
            "retention_policy.log_retention_days",
            "from -1 to 32767",
        ),
        ({"preemption_timeout": "1h"}, "preemption_timeout", "must be a whole number"),
        ({"integrations": {"pachyderms": 1}}, "integrations.pachyderms", "Did you mean `pachyderm`?"),
        ({"slurm": {"pbsbatch_args": []}}, "slurm.pbsbatch_args", "unknown key"),
        ({"internal": {"native": 1}}, "internal", "is internal"),
        (
            {"environment": {"environment_variables": ["=1"]}},
            "environment.environment_variables[0]",
            "has no name",
        ),
        (
            {"environment": {"environment_variables": ["DET_MASTER=x"]}},
            "environment.environment_variables[0]",
            "`DET_MASTER`",
        ),
        (
            {"environment": {"environment_variables": "A=1"}},
            "environment.environment_variables",
            "must be a list",
        ),
        (
            {"environment": {"environment_variables": {"tpu": []}}},
            "environment.environment_variables.tpu",
            "unknown key",
        ),
        (
            {"environment": {"registry_auth": {"password": 3}}},
            "environment.registry_auth.password",
            "another type",
        ),
        ({"environment": {"ports": {"a": 70000}}}, "environment.ports.a", "from 0 to 65535"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_each_mistake_is_the_only_problem_and_says_what_is_right(
    fields: dict[str, Any], path: str, words: str
) -> None:
    raw = {"entrypoint": "x", "searcher": searcher(), **fields}

    found = problems(raw)

    assert list(found) == [path]
    assert words in found[path]


def test_all_problems_are_reported_in_the_order_of_the_file() -> None:
    text = """
        log_policies: [{name: a}, {name: a}]
        max_restart: 1
        entrypoint: a
        entrypoint_script: b
        hyperparameters: {x: {type: int, minval: 3, maxval: 3}, y: {type: lgo}}
        min_validation_period: 10
        searcher: {name: single, metric: m, max_trials: 3, source_trial_id: 1, source_checkpoint_uuid: nope}
        workspace: w
        optimizations: {mixed_precision: 00}
    """

    assert list(problems(text)) == [
        "log_policies[1].name",
        "max_restart",
        "entrypoint_script",
        "hyperparameters.x",
        "hyperparameters.y.type",
        "min_validation_period",
        "searcher.max_trials",
        "searcher.source_checkpoint_uuid",
        "searcher",
        "workspace",
        "optimizations.mixed_precision",
    ]


def test_messages_are_prefixed_with_the_config() -> None:
    with pytest.raises(
        ConfigError, match=r"^<config>\.max_restart: unknown key\. Did you mean `max_restarts`\?$"
    ):
        load_experiment_config("entrypoint: x\nmax_restart: 1")


def test_secrets_do_not_appear_in_messages() -> None:
    storage = {"type": "s3", "bucket": "b", "secret_key": 12345, "access_key": ["hunter2"]}

    text = str(problems({"entrypoint": "x", "checkpoint_storage": storage}))
    assert "12345" not in text
    assert "hunter2" not in text


RICH: dict[str, Any] = {
    "name": "n",
    "description": "d",
    "labels": ["a"],
    "data": {"secrets": {"a": "b"}},
    "entrypoint": "x",
    "hyperparameters": {"a": {"type": "int", "minval": 1, "maxval": 2, "count": 2}, "n": {"b": [1]}},
    "searcher": {
        "name": "adaptive",
        "metric": "m",
        "target_trial_steps": 4,
        "step_budget": 40,
        "mode": "standard",
    },
    "batches_per_step": 10,
    "min_validation_period": 3,
    "resources": {"slots": 1, "devices": [{"host_path": "/a", "container_path": "/b"}, "a:b"], "shm_size": 3},
    "environment": {
        "environment_variables": {"gpu": ["A=1"]},
        "image": {"cpu": "x"},
        "registry_auth": {"server": "x"},
        "proxy_ports": [{"proxy_port": 3}],
        "ports": {"a": 1},
    },
    "bind_mounts": [{"host_path": "/a", "container_path": "/b"}],
    "log_policies": [{"name": "a", "pattern": "x", "action": {"type": "cancel_retries"}}],
    "checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "storage_path": "b", "save_trial_best": 1},
    "retention_policy": {"log_retention_days": 3},
    "reproducibility": {"experiment_seed": 3},
    "optimizations": {"mixed_precision": "O1"},
}
LAYER: dict[str, Any] = {
    name: RICH[name] for name in ("labels", "resources", "environment", "bind_mounts", "log_policies")
}
GARBAGE: list[Any] = [None, True, 0, -1, 3.5, float("nan"), 10**400, "", "x", [], [[1]], [None]]
GARBAGE += [{}, {"x": [1]}, {1: 2}, {"type": [1]}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*path, key)
        yield from places(below, (*path, key))


@pytest.mark.parametrize("path", list(places(RICH)), ids=lambda path: ".".join(map(str, path)))
def test_garbage_anywhere_is_accepted_or_reported(path: tuple[Any, ...]) -> None:
    for garbage in GARBAGE:
        raw = copy.deepcopy(RICH)
        parent = raw
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = garbage
        with contextlib.suppress(ConfigError):
            load_experiment_config(raw, layers=[LAYER])
        with contextlib.suppress(ConfigError):
            load_experiment_config(LAYER, layers=[raw])
        with contextlib.suppress(ConfigError):
            load_job_config(raw)
        ExperimentConfig.from_dict(raw)
        JobConfig.from_dict(raw)
        masked(raw)
