from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.config import RandomStream, Space
from det_keras.errors import ConfigError


def int_range(low: int, high: int, count: int | None = None) -> dict[str, Any]:
    return {"type": "int", "minval": low, "maxval": high} | ({} if count is None else {"count": count})


def double_range(low: float, high: float, count: int | None = None) -> dict[str, Any]:
    return {"type": "double", "minval": low, "maxval": high} | ({} if count is None else {"count": count})


def log_range(base: float, low: float, high: float, count: int | None = None) -> dict[str, Any]:
    return {"type": "log", "base": base, "minval": low, "maxval": high} | (
        {} if count is None else {"count": count}
    )


def points(leaf: dict[str, Any]) -> list[Any]:
    return [point["x"] for point in Space.parse({"x": leaf}).grid()]


def problems_of(raw: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        Space.parse(raw)
    return {
        problem.path.removeprefix("hyperparameters."): problem.message for problem in caught.value.problems
    }


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        (int_range(1, 3, 3), [1, 2, 3]),
        (int_range(1, 3, 100), [1, 2, 3]),
        (int_range(0, 10, 4), [0, 3, 7, 10]),
        (int_range(0, 20, 7), [0, 3, 7, 10, 13, 17, 20]),
        (int_range(0, 5, 3), [0, 3, 5]),
        (int_range(-5, 0, 3), [-5, -3, 0]),
        (int_range(-4, -2, 3), [-4, -3, -2]),
        (int_range(1, 4, 1), [3]),
        (int_range(-4, -1, 1), [-3]),
        (double_range(0, 2, 5), [0, 0.5, 1, 1.5, 2]),
        (double_range(0.1, 0.5, 3), [0.1, 0.30000000000000004, 0.5]),
        (double_range(0.2, 0.5, 1), [0.35]),
        (double_range(0, 0.9, 4), [0, 0.3, 0.6, 0.9]),  # other digits if divided before multiplying
        (log_range(2, 0, 8, 3), [1, 16, 256]),
    ],
    ids=str,
)
def test_grid_points_are_exact(leaf: dict[str, Any], expected: list[float]) -> None:
    assert points(leaf) == expected


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [(log_range(10, -5, -3, 3), [1e-5, 1e-4, 1e-3]), (log_range(10, -5, -1, 1), [1e-3])],
    ids=str,
)
def test_log_grid_points_are_near(leaf: dict[str, Any], expected: list[float]) -> None:
    # Powers of ten are not exact in floats.
    assert points(leaf) == pytest.approx(expected, rel=1e-12)


def test_first_name_varies_slowest() -> None:
    space = Space.parse({"b": {"type": "categorical", "vals": ["x", "y"]}, "a": int_range(0, 2, 2)})

    assert space.grid() == [{"a": 0, "b": "x"}, {"a": 0, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]


def test_nested_leaves_are_axes_in_their_place() -> None:
    space = Space.parse(
        {
            "z": 1,
            "m": {"b": int_range(1, 2, 2), "a": {"type": "categorical", "vals": ["p", "q"]}, "e": {}},
            "c": 0,
        }
    )

    assert [(p["m"]["a"], p["m"]["b"]) for p in space.grid()] == [("p", 1), ("p", 2), ("q", 1), ("q", 2)]
    assert space.grid()[0] == {"c": 0, "m": {"a": "p", "b": 1, "e": {}}, "z": 1}
    assert [name for name, _ in space.leaves()] == ["c", "m.a", "m.b", "z"]


def test_empty_space_has_one_empty_point() -> None:
    space = Space.parse({})

    assert space.grid() == [{}]
    assert space.is_constant
    assert space.constants() == {}


def test_grid_without_counts_names_all_offenders() -> None:
    space = Space.parse(
        {"a": int_range(1, 2), "o": {"lr": log_range(10, -3, -1)}, "c": double_range(0, 1, 2)}
    )

    with pytest.raises(ConfigError, match=r"`count` for `a`, `o\.lr`\."):
        space.grid()


def test_names_sort_by_bytes() -> None:
    space = Space.parse({"a": 1, "B": 2, "ä": 3, "_": 4})

    assert list(space.sample(RandomStream(0))) == ["B", "_", "a", "ä"]


def test_lists_and_nulls_are_constants() -> None:
    raw = {
        "layers": [1, {"type": "int"}],
        "nothing": None,
        "mapping": {"type": "const", "val": {"deep": {"x": 1}}},
    }
    space = Space.parse(raw)

    assert space.constants() == {
        "layers": [1, {"type": "int"}],
        "nothing": None,
        "mapping": {"deep": {"x": 1}},
    }
    assert space.to_dict()["nothing"] == {"type": "const", "val": None}
    assert [name for name, _ in space.leaves()] == ["layers", "mapping", "nothing"]


def test_values_handed_out_are_not_shared() -> None:
    space = Space.parse({"a": [1], "c": {"type": "categorical", "vals": [{"x": [1]}]}})
    first = space.sample(RandomStream(0))
    first["a"].append(2)
    first["c"]["x"].append(2)
    space.grid()[0]["a"].append(3)
    space.to_dict()["c"]["vals"][0]["x"].append(4)

    assert space.grid() == [{"a": [1], "c": {"x": [1]}}]


def test_grid_points_do_not_share_lists() -> None:
    grid = Space.parse({"a": [1], "b": int_range(1, 2, 2), "n": {"l": [0]}}).grid()
    grid[0]["a"].append(2)
    grid[0]["n"]["l"].append(2)

    assert grid[1] == {"a": [1], "b": 2, "n": {"l": [0]}}


def test_constants_of_a_space_that_varies_names_what_varies() -> None:
    with pytest.raises(ValueError, match=r"`o\.lr`"):
        Space.parse({"o": {"lr": log_range(10, -3, -1)}}).constants()


def test_integral_floats_are_ints() -> None:
    assert Space.parse({"x": {"type": "int", "minval": 1.0, "maxval": 3.0, "count": 2.0}}).to_dict() == {
        "x": int_range(1, 3, 2)
    }


@pytest.mark.parametrize(
    ("leaf", "path", "words"),
    [
        ({"type": "duble"}, "x.type", "Did you mean `double`?"),
        ({"type": None}, "x.type", "must be one of int, double, log, const, categorical"),
        ({"type": "int", "minval": 1}, "x.maxval", "required"),
        ({"type": "int", "minval": 1, "maxval": 2, "cuont": 3}, "x.cuont", "Did you mean `count`?"),
        ({"type": "int", "minval": 1, "maxval": 2, "base": 3}, "x.base", "not a key of type `int`"),
        ({"type": "const"}, "x.val", "required"),
        ({"type": "const", "val": 1, "vals": [1]}, "x.vals", "not a key of type `const`"),
        (int_range(3, 3), "x", "received 3 and 3"),
        (int_range(4, 3), "x", "`minval` must be below `maxval`"),
        (double_range(1.0, 1.0), "x", "`minval` must be below `maxval`"),
        (log_range(10, 2, 1), "x", "`minval` must be below `maxval`"),
        ({"type": "int", "minval": 0.5, "maxval": 2}, "x.minval", "whole number"),
        ({"type": "int", "minval": 0, "maxval": 2**63}, "x.maxval", "64 bits"),
        ({"type": "int", "minval": True, "maxval": 2}, "x.minval", "received True"),
        ({"type": "double", "minval": "0", "maxval": 2}, "x.minval", "must be a number"),
        ({"type": "double", "minval": 0, "maxval": math.inf}, "x.maxval", "must be a number"),
        ({"type": "double", "minval": 0, "maxval": 10**400}, "x.maxval", "must be a number"),
        ({"type": "log", "minval": 0, "maxval": 2}, "x.base", "required"),
        (log_range(0, 1, 2), "x.base", "above 0 and not 1"),
        (log_range(-2, 1, 2), "x.base", "above 0 and not 1"),
        (log_range(1, 1, 2), "x.base", "above 0 and not 1"),
        (log_range(10, 1, 400), "x.maxval", "too large"),
        (int_range(1, 3, 0), "x.count", "at least 1"),
        ({"type": "int", "minval": 1, "maxval": 2, "count": True}, "x.count", "received True"),
        ({"type": "categorical"}, "x.vals", "required"),
        ({"type": "categorical", "vals": []}, "x.vals", "at least one value"),
        ({"type": "categorical", "vals": "ab"}, "x.vals", "must be a list"),
    ],
    ids=str,
)
def test_wrong_leaf_says_where_and_why(leaf: dict[str, Any], path: str, words: str) -> None:
    assert words in problems_of({"x": leaf})[path]


def test_problems_at_every_depth_are_reported_together() -> None:
    raw = {"a": {"type": "x"}, "n": {"m": {"b": int_range(2, 1), "c": {"type": "const"}}}, 3: 1}

    assert set(problems_of(raw)) == {"a.type", "n.m.b", "n.m.c.val", "3"}


@pytest.mark.parametrize("raw", [[1], "a", 3], ids=str)
def test_space_must_be_a_mapping(raw: object) -> None:
    with pytest.raises(ConfigError, match="must be a mapping"):
        Space.parse(raw)


@pytest.mark.parametrize(
    "batch_size",
    [64, int_range(1, 8), {"type": "categorical", "vals": [32, 64]}, {"type": "const", "val": 1}],
    ids=str,
)
def test_batch_sizes_that_are_fine(batch_size: object) -> None:
    Space.parse({"global_batch_size": batch_size, "nested": {"global_batch_size": "anything"}})


@pytest.mark.parametrize(
    ("written", "leaf"),
    [
        (64.0, {"type": "const", "val": 64}),
        ({"type": "const", "val": 64.0}, {"type": "const", "val": 64}),
        ({"type": "categorical", "vals": [32.0, 64]}, {"type": "categorical", "vals": [32, 64]}),
    ],
    ids=str,
)
def test_batch_size_without_a_fraction_is_a_whole_number(written: object, leaf: dict[str, Any]) -> None:
    space = Space.parse({"global_batch_size": written, "x": 64.0})

    assert repr(space.to_dict()) == repr({"global_batch_size": leaf, "x": {"type": "const", "val": 64.0}})


@pytest.mark.parametrize(
    "batch_size",
    [
        0,
        -1,
        3.5,
        "64",
        True,
        None,
        [1],
        {},
        int_range(0, 8),
        double_range(1, 2),
        {"type": "categorical", "vals": [0]},
    ],
    ids=str,
)
def test_batch_sizes_that_are_not(batch_size: object) -> None:
    problems = problems_of({"global_batch_size": batch_size, "x": {"type": "oops"}})

    assert set(problems) == {"global_batch_size", "x.type"}


counts = st.none() | st.integers(1, 6)
bounds = st.tuples(st.integers(-50, 50), st.integers(1, 40)).map(lambda pair: (pair[0], sum(pair)))
leaves = st.one_of(
    st.integers() | st.text() | st.none() | st.lists(st.integers(), max_size=2),
    st.builds(lambda b, c: int_range(*b, c), bounds, counts),
    st.builds(lambda b, c: double_range(b[0] / 7, b[1] / 7, c), bounds, counts),
    st.builds(
        lambda base, b, c: log_range(base, b[0] / 9, b[1] / 9, c),
        st.sampled_from([2, 10, 0.5]),
        bounds,
        counts,
    ),
    st.builds(
        lambda vals: {"type": "categorical", "vals": vals},
        st.lists(st.integers() | st.text(), min_size=1, max_size=4),
    ),
)
names = st.text(min_size=1, max_size=4).filter(lambda name: name != "type")
spaces = st.dictionaries(names, leaves | st.dictionaries(names, leaves, max_size=2), max_size=4)


@settings(max_examples=60, deadline=None)
@given(spaces)
def test_normal_form_reads_back_to_the_same_space(raw: dict[str, Any]) -> None:
    space = Space.parse(raw)

    assert Space.parse(space.to_dict()) == space
    assert Space.parse(space.to_dict()).to_dict() == space.to_dict()


@settings(max_examples=60, deadline=None)
@given(spaces)
def test_grid_is_the_product_of_its_leaves_in_order(raw: dict[str, Any]) -> None:
    space = Space.parse(raw)
    if space.uncounted_names() or space.grid_size() > 500:
        return
    grid = space.grid()

    assert len(grid) == space.grid_size()
    distinct = [leaf.points() for _, leaf in space.leaves()]
    assert len(grid) == math.prod(map(len, distinct))
    flat = list(itertools.product(*distinct))
    assert [_flatten(point) for point in grid] == [list(values) for values in flat]


@settings(max_examples=40, deadline=None)
@given(spaces, st.integers(0, 2**32 - 1))
def test_samples_lie_within_the_space(raw: dict[str, Any], seed: int) -> None:
    space = Space.parse(raw)
    values = _flatten(space.sample(RandomStream(seed)))

    for (_, leaf), value in zip(space.leaves(), values, strict=True):
        form = leaf.to_dict()
        if form["type"] in ("int", "double"):
            assert form["minval"] <= value <= form["maxval"]
        elif form["type"] == "categorical":
            assert value in form["vals"]


def _flatten(point: dict[str, Any]) -> list[Any]:
    return [
        leaf for value in point.values() for leaf in (_flatten(value) if isinstance(value, dict) else [value])
    ]
