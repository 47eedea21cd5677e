from __future__ import annotations

from typing import Any

import pytest

from det_keras.config import apply_overrides
from det_keras.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=3", 3),
        ("a.b=1e-3", 0.001),
        ("a.b=true", True),
        ("a.b=text", "text"),
        ("a.b='3'", "3"),
        ("a.b=", None),
        ("a.b=x=y", "x=y"),
        ("a.b=1, two,3.5", [1, "two", 3.5]),
        ("a.b=[1, {c: 2}]", [1, {"c": 2}]),
        ("a.b={c: 1, d: [2]}", {"c": 1, "d": [2]}),
        ("a.b=python3 train.py: x", "python3 train.py: x"),
        ("a.b=@odd", "@odd"),
    ],
)
def test_values_are_parsed(override: str, value: object) -> None:
    assert apply_overrides({}, [override]) == {"a": {"b": value}}


def test_later_overrides_win_and_the_original_is_untouched() -> None:
    raw = {"a": {"b": 1}, "c": None}

    assert apply_overrides(raw, ["a.b=2", "a.b=3", "c.d.e=4"]) == {"a": {"b": 3}, "c": {"d": {"e": 4}}}
    assert raw == {"a": {"b": 1}, "c": None}


def test_unit_of_a_length_replaces_its_other_unit() -> None:
    raw = {"searcher": {"max_length": {"batches": 100}}, "data": {"max_length": {"batches": 100}}}
    overrides = ["searcher.max_length.epochs=2", "data.max_length.epochs=2"]

    assert apply_overrides(raw, overrides) == {
        "searcher": {"max_length": {"epochs": 2}},
        "data": {"max_length": {"batches": 100, "epochs": 2}},
    }


@pytest.mark.parametrize(
    ("raw", "override", "result"),
    [
        (
            {"searcher": {"name": "random", "time_metric": "batches", "max_time": 100}},
            "searcher.max_length.batches=400",
            {"searcher": {"name": "random", "max_length": {"batches": 400}}},
        ),
        (
            {"searcher": {"max_length": 500}},
            "searcher.max_length.epochs=3",
            {"searcher": {"max_length": {"epochs": 3}}},
        ),
        (
            {"min_validation_period": 5},
            "min_validation_period.epochs=3",
            {"min_validation_period": {"epochs": 3}},
        ),
        ({}, "searcher.budget.epochs=3", {"searcher": {"budget": {"epochs": 3}}}),
        (
            {"searcher": {"max_time": 9, "max_length": {"epochs": 3}}},
            "searcher.max_length.batches=",
            {"searcher": {"max_time": 9, "max_length": {"epochs": 3, "batches": None}}},
        ),
    ],
    ids=["over max_time", "over a number", "at the top", "over nothing", "null replaces nothing"],
)
def test_unit_of_a_length_replaces_what_the_whole_length_would(
    raw: dict[str, Any], override: str, result: dict[str, Any]
) -> None:
    assert apply_overrides(raw, [override]) == result


def test_entrypoint_of_either_name_replaces_the_other() -> None:
    assert apply_overrides({"entrypoint": "a"}, ["entrypoint_script=b"]) == {"entrypoint_script": "b"}
    assert apply_overrides({"entrypoint_script": "a"}, ["entrypoint=b"]) == {"entrypoint": "b"}
    assert apply_overrides({"entrypoint_script": "a"}, ["entrypoint="]) == {
        "entrypoint_script": "a",
        "entrypoint": None,
    }


def test_key_that_is_no_text_is_found_by_its_text() -> None:
    assert apply_overrides({"data": {1: "a"}}, ["data.1=x"]) == {"data": {1: "x"}}
    assert apply_overrides({"data": {True: {2: "a"}}}, ["data.true.2=x"]) == {"data": {True: {2: "x"}}}


@pytest.mark.parametrize(
    ("raw", "override"),
    [
        ({"hyperparameters": {"net.lr": 0.1}}, "hyperparameters.net.lr=0.5"),
        ({"hyperparameters": {"net.lr": 0.1, "net": {}}}, "hyperparameters.net.lr=0.5"),
        ({"hyperparameters": {"net": {"opt.a": {"b": 1}}}}, "hyperparameters.net.opt.a.b=0.5"),
    ],
)
def test_path_that_may_be_a_key_with_dots_is_refused(raw: dict[str, Any], override: str) -> None:
    with pytest.raises(ConfigError, match=r"may mean two things\. Change it in the file"):
        apply_overrides(raw, [override])


def test_all_wrong_overrides_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(
            {"a": 1, "data": {"secrets": {"x": "hunter2"}}}, ["nothing", "=1", "a..b=1", "a.b=1", "c=[1"]
        )

    assert [problem.path for problem in caught.value.problems] == ["", "", "", "a", ""]


def test_an_override_through_a_secret_does_not_show_it() -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides({"data": {"secrets": {"x": "hunter2"}}}, ["data.secrets.x.y=1"])

    assert "hunter2" not in str(caught.value)
