from __future__ import annotations

from typing import Any

import pytest

from det_keras.config import ExperimentConfig, load_experiment_config, load_job_config
from det_keras.config.searching.budget import bracket_rungs, trials_for_budget
from det_keras.errors import ConfigError


def load(**fields: Any) -> ExperimentConfig:
    return load_experiment_config({"entrypoint": "x", **fields}).config


def notices(**fields: Any) -> str:
    return "\n".join(load_experiment_config({"entrypoint": "x", **fields}).notices)


def problems(**fields: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(**fields)
    return {problem.path: problem.message for problem in caught.value.problems}


def searcher(**fields: Any) -> dict[str, Any]:
    return {"name": "single", "metric": "loss", **fields}


CLASSIC = """
description: mnist_keras_const_simple
hyperparameters: {global_batch_size: 32}
searcher: {name: single, metric: val_accuracy, max_steps: 40}
min_validation_period: 10
entrypoint: "model_def:MNISTTrial"
"""


def test_classic_tutorial_config_normalises() -> None:
    loaded = load_experiment_config(CLASSIC)
    full = loaded.config.to_dict()

    assert full["name"] == full["description"] == "mnist_keras_const_simple"
    assert full["scheduling_unit"] == 100
    assert full["hyperparameters"] == {"global_batch_size": {"type": "const", "val": 32}}
    assert full["searcher"] == {
        "name": "single",
        "metric": "val_accuracy",
        "smaller_is_better": True,
        "source_trial_id": None,
        "source_checkpoint_uuid": None,
        "max_length": {"batches": 4000},
    }
    assert full["min_validation_period"] == {"batches": 1000}
    assert full["min_checkpoint_period"] == {"batches": 0}
    assert loaded.config.trial_class == "model_def:MNISTTrial"
    assert any("lowest `val_accuracy`" in notice for notice in loaded.notices)
    assert loaded.original == CLASSIC


def test_new_tutorial_config_gets_the_default_searcher_and_a_notice() -> None:
    text = "hyperparameters: {dropout: 0.5, global_batch_size: 128}\nentrypoint_script: python3 train.py"
    loaded = load_experiment_config(text)

    assert loaded.config.command() == ["sh", "-c", "python3 train.py"]
    assert loaded.config.trial_class is None
    assert (loaded.config.searcher.name, loaded.config.searcher.metric) == ("single", "val_loss")
    assert loaded.config.searcher.smaller_is_better
    assert loaded.config.searcher.max_length is None
    assert [notice for notice in loaded.notices if "no `searcher`" in notice]
    assert loaded.config.hyperparameters.constants() == {"dropout": 0.5, "global_batch_size": 128}


def test_inference_config_is_a_job() -> None:
    text = "entrypoint_script: python3 infer.py\ndata: {trial_id: 777, batch_size: 64}\nresources: {slots: 8}"
    config = load_job_config(text).config

    assert config.resources.slots == 8
    assert config.data == {"trial_id": 777, "batch_size": 64}
    assert config.command() == ["sh", "-c", "python3 infer.py"]


def test_asha_with_a_length_becomes_the_promotion_variant() -> None:
    raw = {"name": "adaptive_asha", "max_length": {"epochs": 64}, "max_trials": 16, "metric": "val_loss"}
    result = load(searcher=raw).searcher

    assert (result.time_metric, result.max_time) == ("epochs", 64)
    assert (result.divisor, result.max_rungs, result.mode, result.max_concurrent_trials) == (
        4,
        5,
        "standard",
        16,
    )
    assert (result.bracket_rungs, result.stop_once) == ((), False)
    assert str(result.max_length) == "64 epochs"


def test_asha_with_a_time_becomes_the_stopping_variant() -> None:
    raw = {
        "name": "async_halving",
        "num_rungs": 3,
        "max_trials": 4,
        "metric": "m",
        "time_metric": "t",
        "max_time": 9,
    }
    result = load(searcher=raw).searcher

    assert (result.stop_once, result.max_length) == (True, None)


def test_variant_of_asha_can_be_said() -> None:
    raw = {
        "name": "adaptive_asha",
        "max_length": {"epochs": 64},
        "max_trials": 16,
        "metric": "m",
        "stop_once": True,
    }

    assert load(searcher=raw).searcher.stop_once


def test_asha_with_a_bare_length_counts_epochs() -> None:
    raw = {"name": "adaptive_asha", "max_length": 8, "max_trials": 2, "metric": "m"}

    assert (load(searcher=raw).searcher.time_metric, load(searcher=raw).searcher.max_time) == ("epochs", 8)
    assert "is read as 8 epochs" in notices(searcher=raw)


def test_async_halving_needs_a_unit() -> None:
    raw = {"name": "async_halving", "max_length": 8, "max_trials": 2, "metric": "m", "num_rungs": 2}

    assert list(problems(searcher=raw)) == ["searcher.max_length"]
    assert "8 has no unit" in problems(searcher=raw)["searcher.max_length"]


def test_time_wins_over_another_length_with_a_notice() -> None:
    raw = {
        "name": "adaptive_asha", "max_trials": 2, "metric": "m",
        "max_length": {"epochs": 3}, "time_metric": "epochs", "max_time": 4,
    }  # fmt: skip
    result = load(searcher=raw).searcher

    assert (result.max_length, result.max_time, result.stop_once) == (None, 4, True)
    assert "`searcher.max_length` is ignored" in notices(searcher=raw)


def test_step_size_is_the_scheduling_unit() -> None:
    config = load(batches_per_step=50, searcher=searcher(target_trial_steps=20))

    assert config.scheduling_unit == 50
    assert config.searcher.max_length is not None
    assert config.searcher.max_length.to_dict() == {"batches": 1000}


def test_periods_in_steps_convert_and_lengths_with_units_stay() -> None:
    config = load(batches_per_step=7, min_checkpoint_period=2, min_validation_period={"epochs": 1})

    assert config.min_checkpoint_period.to_dict() == {"batches": 14}
    assert config.min_validation_period.to_dict() == {"epochs": 1}


@pytest.mark.parametrize("name", ["min_validation_period", "min_checkpoint_period"])
def test_bare_period_outside_the_steps_era_asks_for_a_unit(name: str) -> None:
    found = problems(**{name: 10}, searcher=searcher(max_length={"batches": 5}))

    assert list(found) == [name]
    assert "10 has no unit" in found[name]
    assert "`{batches: 10}`" in found[name]


@pytest.mark.parametrize("value", [0, -1])
def test_bare_period_must_be_positive_in_the_steps_era(value: int) -> None:
    found = problems(min_validation_period=value, searcher=searcher(max_steps=5))

    assert "at least 1 step" in found["min_validation_period"]


@pytest.mark.parametrize("field", ["max_steps", "target_trial_steps"])
@pytest.mark.parametrize("value", [0, -2, "4", True, 1.5, {"batches": 3}], ids=str)
def test_steps_must_be_a_whole_number(field: str, value: object) -> None:
    assert list(problems(searcher=searcher(**{field: value}))) == [f"searcher.{field}"]


@pytest.mark.parametrize("value", [0, "4", True], ids=str)
def test_step_size_must_be_a_whole_number(value: object) -> None:
    assert list(problems(batches_per_step=value)) == ["batches_per_step"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"batches_per_step": 5, "searcher": searcher(max_length={"batches": 3})}, "searcher.max_length"),
        ({"scheduling_unit": 5, "searcher": searcher(max_steps=3)}, "scheduling_unit"),
        ({"searcher": searcher(max_steps=3, max_length=4)}, "searcher.max_length"),
        (
            {
                "batches_per_step": 5,
                "searcher": {
                    "name": "adaptive_asha",
                    "metric": "m",
                    "max_trials": 2,
                    "time_metric": "t",
                    "max_time": 2,
                },
            },
            "searcher.max_time",
        ),
    ],
    ids=str,
)
def test_steps_do_not_mix_with_newer_lengths(fields: dict[str, Any], path: str) -> None:
    assert "cannot be combined with" in problems(**fields)[path]


def test_two_names_for_the_steps_of_a_trial_are_one_too_many() -> None:
    assert list(problems(searcher=searcher(max_steps=3, target_trial_steps=4))) == [
        "searcher.target_trial_steps"
    ]


def test_null_in_old_fields_is_not_given() -> None:
    config = load(
        batches_per_step=None, searcher=searcher(max_steps=None, max_length={"epochs": 2}), scheduling_unit=3
    )

    assert config.scheduling_unit == 3


@pytest.mark.parametrize("name", ["single", "grid"])
def test_bare_length_counts_epochs_with_a_notice(name: str) -> None:
    raw = searcher(name=name, max_length=5)

    assert str(load(searcher=raw).searcher.max_length) == "5 epochs"
    assert "has no unit and is read as 5 epochs" in notices(searcher=raw)


@pytest.mark.parametrize("name", ["single", "adaptive_asha"])
@pytest.mark.parametrize("value", [0, -3])
def test_bare_length_must_be_positive(name: str, value: int) -> None:
    more = {"max_trials": 2} if name == "adaptive_asha" else {}

    assert list(problems(searcher=searcher(name=name, max_length=value, **more))) == ["searcher.max_length"]


@pytest.mark.parametrize(
    ("length", "budget", "mode", "max_rungs", "trials"),
    [(400, 4000, "standard", 5, 317), (400, 4000, "aggressive", 3, 64), (64, 1024, "standard", 3, 69)],
)
def test_budget_buys_the_trials_of_the_reference(
    length: int, budget: int, mode: str, max_rungs: int, trials: int
) -> None:
    assert trials_for_budget(length, budget, bracket_rungs(mode, max_rungs), 4) == trials
    raw = searcher(
        name="adaptive",
        max_length={"batches": length},
        budget={"batches": budget},
        mode=mode,
        max_rungs=max_rungs,
    )
    result = load(searcher=raw).searcher
    assert (result.name, result.max_trials, result.mode, result.max_rungs) == (
        "adaptive_asha",
        trials,
        mode,
        max_rungs,
    )
    assert f"`max_trials: {trials}`" in notices(searcher=raw)


def test_brackets_of_the_reference_start_with_their_trials() -> None:
    shares = [trials_for_budget(400, 4000 // 3, [rungs], 4) for rungs in (5, 4, 3)]

    assert shares == [230, 66, 21]


def test_adaptive_search_in_steps() -> None:
    raw = searcher(name="adaptive", target_trial_steps=4, step_budget=40, train_stragglers=True, divisor=4)
    result = load(searcher=raw).searcher

    assert (result.max_trials, result.time_metric, result.max_time, result.stop_once) == (
        317,
        "batches",
        400,
        False,
    )


@pytest.mark.parametrize("name", ["sync_halving", "async_halving"])
def test_halving_with_a_budget(name: str) -> None:
    raw = searcher(name=name, target_trial_steps=4, step_budget=40, num_rungs=3, train_stragglers=False)
    result = load(searcher=raw).searcher

    # need 25, 100, 400; start 16, 4, 1; e = 25*16 + 75*4 + 300 = 1000; 4000/1000*16 = 64
    assert (result.name, result.max_trials, result.num_rungs) == ("async_halving", 64, 3)


def test_adaptive_keeps_its_own_brackets() -> None:
    lengths = {"max_length": {"batches": 400}, "budget": {"batches": 4000}}
    result = load(searcher=searcher(name="adaptive", bracket_rungs=[3, 5, 4], **lengths)).searcher

    assert (result.max_trials, result.bracket_rungs) == (317, (3, 5, 4))


def test_budget_in_records_is_converted_with_the_batch_size() -> None:
    raw = searcher(name="adaptive", max_length={"batches": 400}, budget={"records": 4000 * 32})

    assert load(searcher=raw, hyperparameters={"global_batch_size": 32}).searcher.max_trials == 317


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_length": {"batches": 4}}, "searcher.budget"),
        ({"max_length": {"batches": 4}, "budget": {"batches": 4}}, "searcher.budget"),
        ({"max_length": {"batches": 4}, "budget": {"epochs": 4}}, "searcher.budget"),
        ({"max_length": {"batches": 4}, "budget": 40}, "searcher.budget"),
        ({"budget": {"batches": 40}}, "searcher"),
        ({"max_length": {"batches": "4"}, "budget": {"batches": 40}}, "searcher.max_length.batches"),
        ({"max_length": {"batches": 4}, "budget": {"batches": 40}, "mode": "standrad"}, "searcher.mode"),
        ({"max_length": {"batches": 4}, "budget": {"batches": 40}, "max_rungs": 10**9}, "searcher.max_rungs"),
        (
            {"max_length": {"batches": 4}, "budget": {"batches": 40}, "bracket_rungs": [1, 31]},
            "searcher.bracket_rungs",
        ),
        ({"max_length": {"batches": 4}, "budget": {"batches": 40}, "divisor": 1}, "searcher.divisor"),
        ({"max_length": {"batches": 4}, "budget": {"batches": 40}, "divisor": 1e300}, "searcher.divisor"),
    ],
    ids=str,
)
def test_budget_that_cannot_be_used_is_the_only_problem(fields: dict[str, Any], path: str) -> None:
    assert list(problems(searcher=searcher(name="adaptive", **fields))) == [path]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"budget": "rubbish", "max_trials": None}, "searcher.budget"),
        ({"budget": "rubbish", "max_trials": 4}, "searcher.budget"),
        ({"budget": {"batches": 0}, "max_trials": 4}, "searcher.budget.batches"),
        ({"max_length": {"batchs": 4}, "time_metric": "epochs", "max_time": 4}, "searcher.max_length"),
        ({"max_length": 0, "time_metric": "epochs", "max_time": 4}, "searcher.max_length"),
    ],
    ids=str,
)
def test_lengths_are_read_before_they_are_ignored(fields: dict[str, Any], path: str) -> None:
    whole = {"name": "adaptive", "max_trials": 4, **fields}

    assert path in problems(searcher=searcher(**whole))


def test_lengths_that_are_ignored_are_named_in_a_notice() -> None:
    time = {"max_trials": 4, "time_metric": "epochs", "max_time": 4}

    assert "`searcher.budget` is ignored: `max_trials: 4`" in notices(
        searcher=searcher(name="adaptive", budget={"batches": 40}, **time)
    )
    for length in (50, {"batches": 50}):
        assert "`searcher.max_length` is ignored" in notices(
            searcher=searcher(name="adaptive_asha", max_length=length, **time)
        )


@pytest.mark.parametrize(
    ("name", "more", "method"),
    [("adaptive", {}, "adaptive_asha"), ("sync_halving", {"num_rungs": 2}, "async_halving")],
)
def test_notice_about_a_method_speaks_of_a_budget_only_where_there_is_one(
    name: str, more: dict[str, int], method: str
) -> None:
    raw = searcher(name=name, max_trials=4, time_metric="epochs", max_time=4, **more)

    assert notices(searcher=raw) == f"`searcher.name: {name}` is read as `{method}`."


def test_adaptive_simple_becomes_adaptive_asha() -> None:
    raw = searcher(name="adaptive_simple", max_steps=4, max_trials=16, mode="aggressive")
    result = load(searcher=raw).searcher

    assert (result.name, result.max_trials, result.mode, result.max_time) == (
        "adaptive_asha",
        16,
        "aggressive",
        400,
    )
    assert "`adaptive_simple` is read as `adaptive_asha`" in notices(searcher=raw).replace(
        "searcher.name: ", ""
    )
    assert "searcher.max_trials" in problems(searcher={**raw, "max_trials": 2001})


@pytest.mark.parametrize(("more", "name"), [({}, "adaptive_asha"), ({"num_rungs": 2}, "async_halving")])
def test_asha_is_an_alias(more: dict[str, int], name: str) -> None:
    raw = searcher(name="asha", max_trials=4, time_metric="epochs", max_time=4, **more)

    assert load(searcher=raw).searcher.name == name
    assert f"read as `{name}`" in notices(searcher=raw)


@pytest.mark.parametrize("name", ["pbt", "custom"])
def test_removed_methods_are_refused_with_an_alternative(name: str) -> None:
    raw = searcher(name=name, steps_per_round=3, population_size=3)
    found = problems(
        searcher=raw, hyperparameters={"x": {"type": "int", "minval": 1, "maxval": 2}}, max_restarts=-1
    )

    assert list(found) == ["searcher.name", "max_restarts"]
    assert "`random`" in found["searcher.name"]


def test_tpe_has_the_fields_of_random_and_its_own() -> None:
    result = load(searcher=searcher(name="tpe", max_trials=4)).searcher

    assert (result.max_trials, result.n_startup_trials, result.max_concurrent_trials) == (4, 10, 16)


def test_gpu_is_read_as_cuda() -> None:
    environment = {"environment_variables": {"gpu": ["A=1"], "cpu": ["B=2"]}, "image": {"gpu": "i"}}
    result = load(environment=environment).environment

    assert result.environment_variables_for("cuda") == result.environment_variables_for("gpu") == {"A": "1"}
    assert result.image == {"cuda": "i"}
    assert "old name" in notices(environment=environment)
    both = {"environment_variables": {"gpu": [], "cuda": []}}
    assert "environment.environment_variables.gpu" in problems(environment=both)


def test_old_form_of_a_log_action() -> None:
    config = load(log_policies=[{"pattern": "x", "action": {"type": "cancel_retries"}}])

    assert config.log_policies[0].action == "cancel_retries"
    assert config.log_policies[0].name is None


def test_slots_of_an_experiment_are_slots_per_trial() -> None:
    assert load(resources={"slots": 4}).resources.slots_per_trial == 4
    assert "`resources.slots` is read as `resources.slots_per_trial`" in notices(resources={"slots": 4})
    assert load(resources={"slots": 4, "slots_per_trial": 4}).resources.slots_per_trial == 4
    assert list(problems(resources={"slots": 4, "slots_per_trial": 2})) == ["resources.slots"]


def test_labels_are_a_set_and_may_be_the_keys_of_a_mapping() -> None:
    assert load(labels=["b", "a", "b"]).labels == ("a", "b")
    assert load(labels={"x": None, "w": 1}).labels == ("w", "x")
    assert list(problems(labels=["a", 3])) == ["labels[1]"]


@pytest.mark.parametrize(
    ("labels", "paths"),
    [
        (["", "x"], ["labels[0]"]),
        (["x", " ", "\t\n"], ["labels[1]", "labels[2]"]),
        ({"x": None, "": None}, ["labels[1]"]),
    ],
    ids=str,
)
def test_blank_labels_are_refused(labels: Any, paths: list[str]) -> None:
    found = problems(labels=labels)

    assert list(found) == paths
    assert all("must not be blank" in message for message in found.values())


def test_description_gives_the_name_only_where_there_is_none() -> None:
    assert load(description="first line\nsecond").name == "first line"
    assert load(description="d", name="n").name == "n"
    assert load(description="  ").name.startswith("Experiment (")


def test_equal_entrypoints_are_a_script_and_different_ones_an_error() -> None:
    config = load(entrypoint="a:B", entrypoint_script="a:B")

    assert config.trial_class is None
    assert config.command() == ["sh", "-c", "a:B"]
    assert list(problems(entrypoint="a", entrypoint_script="b")) == ["entrypoint_script"]


@pytest.mark.parametrize("name", ["searcher", "environment", "resources", "log_policies", "description"])
@pytest.mark.parametrize("value", [3, [1], "x", {"x": [3]}], ids=str)
def test_sections_of_a_wrong_type_do_not_break_folding(name: str, value: object) -> None:
    if name == "description" and value == "x":
        return
    assert any(path.startswith(name) for path in problems(**{name: value}))
