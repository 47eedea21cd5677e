"""What all trackers have in common: points by step, groups of metrics, parameters that are stored as text."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest

from det_keras.importing.base import (
    LOST_AFTER,
    Series,
    fingerprint,
    group_of,
    open_state,
    tables_of,
    time_at,
    value_of,
)

AT = datetime(2026, 1, 2, tzinfo=timezone.utc)


def series(*points: tuple[int, float], unit: float = 1.0) -> Series:
    """Return points (step, value), each a microsecond after the one before."""
    steps, values = zip(*points, strict=True) if points else ((), ())
    return Series.of(steps, range(len(steps)), values, unit)


def rows(table):
    """Return the reports of a table: the metrics by step."""
    found = {step: {} for step in table.steps.tolist()}
    for name, column in table.metrics.items():
        steps = table.steps if column.rows is None else table.steps[column.rows]
        for step, value in zip(steps.tolist(), column.values.tolist(), strict=True):
            found[step][name] = value
    return found


def test_metrics_of_the_same_steps_are_one_table():
    tables = tables_of({"loss": series((0, 1.0), (1, 0.5)), "accuracy": series((0, 0.1), (1, 0.2))})
    assert rows(tables["training"]) == {0: {"accuracy": 0.1, "loss": 1.0}, 1: {"accuracy": 0.2, "loss": 0.5}}
    assert all(column.rows is None for column in tables["training"].metrics.values())


def test_of_a_step_the_last_point_counts_and_steps_are_put_in_order():
    table = tables_of({"loss": series((2, 1.0), (1, 2.0), (2, 3.0), (-1, 4.0))})["training"]
    assert rows(table) == {-1: {"loss": 4.0}, 1: {"loss": 2.0}, 2: {"loss": 3.0}}
    # That of the point that counts.
    assert table.times.tolist() == [3, 1, 2]


def test_metrics_of_different_steps_have_values_only_where_they_have_points():
    tables = tables_of({"a": series((0, 1.0), (2, 2.0)), "b": series((1, 3.0), (2, 4.0)), "empty": series()})
    assert rows(tables["training"]) == {0: {"a": 1.0}, 1: {"b": 3.0}, 2: {"a": 2.0, "b": 4.0}}


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("loss", "training"),
        ("value", "training"),
        ("validity", "training"),
        ("train/val_loss", "training"),
        ("val_loss", "validation"),
        ("val/loss", "validation"),
        ("validation_loss", "validation"),
        ("validation.loss", "validation"),
        ("eval/loss", "validation"),
        ("Eval_loss", "validation"),
    ],
)
def test_group_of_a_metric_follows_from_its_name(name, group):
    assert group_of(name) == group


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-12", -12),
        ("0.01", 0.01),
        ("1e-05", 1e-05),
        ("5.", 5.0),
        (".5", 0.5),
        ("True", True),
        ("false", False),
        ("None", None),
        ("007", "007"),
        ("1_000", "1_000"),
        (" 1", " 1"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("e5", "e5"),
        (".", "."),
        ("-", "-"),
        ("", ""),
        ("+.e5", "+.e5"),
        ("1.2.3", "1.2.3"),
        ("[1, 2]", "[1, 2]"),
        ("٣", "٣"),
        ("12345678901234567890", 12345678901234567890.0),
    ],
)
def test_parameter_that_is_text_becomes_what_it_was(text, value):
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


def test_times_outside_of_what_can_be_stored_become_the_nearest():
    assert time_at(math.nan) == time_at(-5) == datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert time_at(math.inf) == datetime(9999, 12, 31, tzinfo=timezone.utc)
    assert series((0, 1.0), (1, 1.0), unit=-1.0).times.tolist() == [0, 0]


def test_step_of_more_than_64_bits_is_refused():
    with pytest.raises(ValueError, match="64 bits"):
        series((1 << 70, 1.0))


def test_run_without_an_end_runs_until_it_was_not_written_for_a_day():
    assert open_state(AT, AT + LOST_AFTER - timedelta(seconds=1)) == "ACTIVE"
    assert open_state(AT, AT + LOST_AFTER) == "ERROR"


def test_fingerprint_changes_with_every_fact():
    assert fingerprint("a", [1]) == fingerprint("a", [1])
    assert len({fingerprint("a", [1]), fingerprint("a", [2]), fingerprint("b", [1]), fingerprint("a")}) == 4
