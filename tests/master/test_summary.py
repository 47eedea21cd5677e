"""Summaries of metrics."""

from __future__ import annotations

import json
import math

from det_keras.master.reports.summary import summarise, summarise_all
from det_keras.master.wire import encode_json


def test_numbers_are_counted_and_measured():
    summary = summarise(summarise({}, {"loss": 3}), {"loss": 1.0})
    assert summary == {
        "loss": {"type": "number", "count": 2, "min": 1.0, "max": 3.0, "sum": 4.0, "mean": 2.0, "last": 1.0}
    }


def test_other_kinds_keep_their_last_value():
    values = {"a": "x", "b": True, "c": {"d": 1}, "e": [1], "f": None, "g": "2026-01-02T03:04:05Z"}
    kinds = {name: entry["type"] for name, entry in summarise({}, values).items()}
    assert kinds == {"a": "string", "b": "boolean", "c": "object", "e": "array", "f": "null", "g": "date"}


def test_name_of_two_kinds_becomes_text():
    assert summarise(summarise({}, {"a": 1}), {"a": True})["a"] == {"type": "string", "last": True}


def test_nan_spreads_and_survives_storage():
    first = summarise({}, {"a": "NaN"})
    stored = json.loads(encode_json(first))
    again = summarise(stored, {"a": 2.0})["a"]
    assert math.isnan(again["mean"])
    assert math.isnan(again["min"])
    assert (again["count"], again["last"]) == (2, 2.0)


def test_groups_are_kept_under_the_names_that_clients_read():
    reports = [("training", {"a": 1}), ("validation", {"b": 2}), ("mine", {"c": 3})]
    assert set(summarise_all(reports)) == {"avg_metrics", "validation_metrics", "mine"}
