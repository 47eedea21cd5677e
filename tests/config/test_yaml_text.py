from __future__ import annotations

import math
import re

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from det_keras.config import dump_yaml, load_experiment_config, load_yaml
from det_keras.config.yaml_text import ensure_tree, to_plain
from det_keras.errors import ConfigError

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 0.0001),
        ("1E5", 100000.0),
        ("-2e+3", -2000.0),
        ("1.5e-3", 0.0015),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("00", 0),
        ("0x1F", 31),
        ("1_000", 1000),
        ("22:22", "22:22"),
        ("2024-01-01", "2024-01-01"),
        ("e5", "e5"),
        ("yes", True),
        ("O0", "O0"),
        ("~", None),
        ('"1e-4"', "1e-4"),
    ],
)
def test_scalars_read_as_users_mean_them(text: str, value: object) -> None:
    assert load_yaml(f"x: {text}") == {"x": value}


@example({"text": "1e-4", "1e-4": "-.inf"})
@example({"<<": "\x85", "a": "x\u2028y\n", "=": "="})
@given(st.dictionaries(st.text(), plain_values, max_size=4))
def test_written_yaml_reads_back_the_same(value: dict[str, object]) -> None:
    assert load_yaml(dump_yaml({"value": value})) == {"value": value}


@pytest.mark.parametrize("text", ["2024-01-01", "22:22", "1e-4", "1.0", "no", "null"])
def test_written_text_stays_text_for_other_yaml_readers(text: str) -> None:
    assert yaml.safe_load(dump_yaml({"x": text})) == {"x": text}


def test_json_is_yaml() -> None:
    assert load_yaml('{"a": {"b": [1, 2.5, null, true]}}') == {"a": {"b": [1, 2.5, None, True]}}


def test_merge_keys_and_anchors_are_no_duplicates() -> None:
    text = "base: &base {a: 1, b: 2}\nx: {<<: *base, b: 3}\ny: {<<: *base, b: 4}"

    assert load_yaml(text) == {"base": {"a": 1, "b": 2}, "x": {"a": 1, "b": 3}, "y": {"a": 1, "b": 4}}


def test_two_merge_keys_are_no_duplicates() -> None:
    assert load_yaml("a: &a {x: 1}\nb: &b {y: 2}\nc: {<<: *a, <<: *b}")["c"] == {"x": 1, "y": 2}


def test_duplicate_keys_are_all_named_with_their_places() -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml("searcher:\n  name: single\n  name: grid\nx: [{a: 1, a: 2}]\n'searcher': 1\n")

    assert {(problem.path, problem.message) for problem in caught.value.problems} == {
        ("searcher", "given twice, on line 1, column 1, and on line 5, column 1. Keep one of them."),
        ("searcher.name", "given twice, on line 2, column 3, and on line 3, column 3. Keep one of them."),
        ("x[0].a", "given twice, on line 4, column 6, and on line 4, column 12. Keep one of them."),
    }


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        (("on", "yes"), "data.yes"),
        (("1", "true"), "data.true"),
        (("1.0", "1"), "data.1"),
        (("1", "'1'"), "data.1"),
        (("0x10", "16"), "data.16"),
        (("null", "~"), "data.~"),
        (("'true'", "true"), "data.true"),
    ],
    ids=str,
)
def test_keys_that_become_one_are_named_with_their_places(keys: tuple[str, str], path: str) -> None:
    first, second = keys
    with pytest.raises(ConfigError) as caught:
        load_yaml(f"data:\n  {first}: a\n  {second}: b\n")

    (problem,) = caught.value.problems
    assert problem.path == path
    assert re.search(r"given twice.* line 2,.* line 3,", problem.message)


def test_keys_in_different_spellings_are_shown_as_written() -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml("data: {on: 1, yes: 2}")

    assert caught.value.problems[0].message == (
        "given twice, as `on` on line 1, column 8, and as `yes` on line 1, column 15: both are the same key. "
        "Keep one of them."
    )


def test_keys_that_only_look_alike_are_no_duplicates() -> None:
    assert load_yaml("data: {2: a, 2.5: b, true: c, 'on': d, no: e, null: f}") == {
        "data": {2: "a", 2.5: "b", True: "c", "on": "d", False: "e", None: "f"}
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: [1,\nc: }", "train.yaml, line 3"),
        ("a: *nowhere", "nowhere"),
        ("", "train.yaml is empty"),
        ("# only a comment", "train.yaml is empty"),
        ("- a\n- b", "has a list at the top"),
        ("just text", "has a single value ('just text') at the top"),
        ("a: !!python/object/apply:os.system ['true']", "line 1"),
        ("a: !!set {x, y}", "line 1"),
        ("a: !!binary aGk=", "line 1"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("a: \x07", "not valid YAML"),
        ("[1]: a", None),
        ("? [1]\n: a", "line 1"),
        ("? !!seq a\n: b", "line 1"),
        ("? " + "9" * 5000 + "\n: a", "cannot be read"),
        ("a: 0x" + "9" * 5000, "cannot be read"),
        ("a: &x [*x]", "contains itself"),
        ("a: " + "[" * 150 + "]" * 150, "nested more than 100 deep"),
        ("a: " + "[" * 20000, "nested too deep"),
        ("a: " + "9" * 5000, "cannot be read"),
    ],
)
def test_text_that_is_no_config_says_why(text: str, words: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml(text, source="train.yaml")

    assert (words or "train.yaml") in str(caught.value)


@pytest.mark.parametrize("text", ["", " \n", "\t", "# only a comment\n", "---\n", "{}"])
def test_text_without_a_value_is_an_empty_mapping_where_that_may_be(text: str) -> None:
    assert load_yaml(text, may_be_empty=True) == {}


def test_aliases_that_explode_are_refused() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]

    with pytest.raises(ConfigError, match="more than 1000000 values"):
        load_yaml("\n".join(lines))


MERGED_TOO_OFTEN = r"merge keys .* add more than 1000000 values"


def test_merge_keys_do_not_explode() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 30)]

    try:
        value = load_yaml("\n".join(lines))
    except ConfigError as error:
        assert re.search(MERGED_TOO_OFTEN, str(error))  # noqa: PT017 - PyYAML 6.0.3 and older
    else:
        # Since 6.0.4, PyYAML merges an entry only once into the same mapping.
        assert value["a29"] == {"x": 1}


def test_merge_keys_that_add_too_much_are_refused() -> None:
    keys = ", ".join(f"k{i}: 1" for i in range(1100))

    with pytest.raises(ConfigError, match=MERGED_TOO_OFTEN):
        load_yaml(f"base: &base {{{keys}}}\nall:\n" + "- {<<: *base}\n" * 1000)


def test_plain_values_from_python_keep_their_meaning() -> None:
    numpy = pytest.importorskip("numpy")

    value = to_plain({"a": numpy.float64(0.5), "b": numpy.int64(3), 1: (True, None)}, "data")

    assert value == {"a": 0.5, "b": 3, "1": [True, None]}
    assert [type(value[name]) for name in ("a", "b")] == [float, int]


def test_values_that_json_cannot_hold_are_named() -> None:
    with pytest.raises(ConfigError, match=r"<config>.data.x\[1\].*is a set"):
        to_plain({"x": [1, {2}]}, "data")


def test_cycles_from_python_are_refused() -> None:
    value: dict[str, object] = {}
    value["self"] = value

    with pytest.raises(ConfigError, match="contains itself"):
        ensure_tree(value)


def test_json_escapes_of_one_character_are_one_character():
    assert load_yaml('{"a": "\\ud83d\\ude00", "\\ud83d\\ude00": 1}') == {"a": "\U0001f600", "\U0001f600": 1}


def test_half_a_character_is_refused():
    with pytest.raises(ConfigError, match="half of a character"):
        load_yaml('a: "\\ud83d"')


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("hyperparameters: {x: .inf}", "hyperparameters.x"),
        ("hyperparameters: {x: 1e400}", "hyperparameters.x"),
        ("hyperparameters: {x: {type: categorical, vals: [1, -.inf]}}", "hyperparameters.x.vals[1]"),
        ("data: {a: [1, .nan]}", "data.a[1]"),
    ],
)
def test_number_that_json_does_not_have_is_refused_with_its_place(section: str, path: str) -> None:
    with pytest.raises(ConfigError, match="is no number that a config can have") as caught:
        load_experiment_config(f"entrypoint: x\nsearcher: {{name: single, metric: m}}\n{section}\n")
    assert [problem.path for problem in caught.value.problems] == [path]
