"""Expressions over metrics: the values of numpy and pandas at the exact points, and nothing but formulas."""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_keras.master.errors import InvalidArgumentError
from det_keras.master.reports.expressions import (
    MOST_CHARACTERS,
    MOST_DEPTH,
    check_names,
    evaluate,
    metric_of,
    parse,
)
from det_keras.master.reports.series import Series

_STARTED = datetime(2025, 1, 1, tzinfo=timezone.utc)
_KNOWN = {("training", "loss"), ("validation", "loss"), ("validation", "val_loss"), ("training", "opt/norm")}


def curve(batches, values, *, epochs=None, late=0.0) -> Series:
    batches = np.array(batches, np.int64)
    return Series(
        trial_id=1,
        started=_STARTED,
        batches=batches,
        epochs=None if epochs is None else np.array(epochs, float),
        seconds=batches.astype(float) + late,
        values=np.array(values, float),
        total=len(batches),
    )


def frame(*curves: Series) -> pd.DataFrame:
    """Return curves as columns a, b, ... where all have a value."""
    columns = {name: pd.Series(one.values, one.batches) for name, one in zip("abc", curves, strict=False)}
    return pd.DataFrame(columns).loc[sorted(set.intersection(*({*one.batches.tolist()} for one in curves)))]


_CURVES = st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True).flatmap(
    lambda batches: st.lists(
        st.one_of(st.floats(-1e3, 1e3), st.just(float("nan"))), min_size=len(batches), max_size=len(batches)
    ).map(lambda values: curve(sorted(batches), values))
)


@pytest.mark.parametrize(
    ("text", "oracle"),
    [
        ("a - b", lambda a, b: a - b),
        ("a + 2 * b", lambda a, b: a + 2 * b),
        ("a / b", lambda a, b: a / b),
        ("-a ** 2", lambda a, b: -(a**2) + 0 * b),
        ("log(abs(a)) + exp(b / 1000)", lambda a, b: np.log(np.abs(a)) + np.exp(b / 1000)),
        ("sqrt(a) - log10(b) + log2(b)", lambda a, b: np.sqrt(a) - np.log10(b) + np.log2(b)),
        ("min(a, b, 3)", lambda a, b: np.minimum(np.minimum(a, b), 3)),
        ("max(0, a) - max(b, a)", lambda a, b: np.maximum(0, a) - np.maximum(b, a)),
        ("1 - (2 - (3 - a)) + b", lambda a, b: 1 - (2 - (3 - a)) + b),
    ],
)
@given(_CURVES, _CURVES)
def test_value_is_that_of_numpy_at_the_batches_that_all_metrics_have(text, oracle, a, b):
    expression = parse(text)
    found = evaluate(expression, {name: {"a": a, "b": b}[name] for name in expression.names})
    both = frame(a, b) if "b" in expression.names else frame(a).assign(b=0)
    assert found.batches.tolist() == both.index.tolist()
    with np.errstate(all="ignore"):
        expected = oracle(both["a"].to_numpy(), both["b"].to_numpy())
    np.testing.assert_array_equal(found.values, expected)


@given(_CURVES, st.floats(0.0, 0.99))
def test_ema_is_the_one_of_pandas(a, weight):
    found = evaluate(parse(f"ema(a, {weight})"), {"a": a})
    oracle = pd.Series(a.values).ewm(alpha=1 - weight, ignore_na=True).mean()
    # A gap stays one; pandas repeats the last average.
    expected = oracle.where(~np.isnan(a.values)).to_numpy()
    # The two add in a different order.
    np.testing.assert_allclose(found.values, expected, rtol=1e-9, atol=1e-9)


def test_average_is_that_of_the_whole_curve_before_it_meets_another():
    a, b = curve(range(10), np.arange(10.0)), curve([4, 9], [0.0, 0.0])
    found = evaluate(parse("ema(a, 0.5) - b"), {"a": a, "b": b})
    oracle = pd.Series(a.values).ewm(alpha=0.5).mean()
    np.testing.assert_allclose(found.values, oracle[[4, 9]], rtol=1e-12)


def test_point_has_the_later_time_and_an_epoch_that_is_known():
    a = curve([1, 2, 3], [1, 1, 1], epochs=[0.1, np.nan, 0.3])
    b = curve([1, 2, 3], [1, 1, 1], epochs=[9, 0.2, 9], late=5.0)
    found = evaluate(parse("a + b"), {"a": a, "b": b})
    assert found.seconds.tolist() == [6.0, 7.0, 8.0]
    assert found.epochs.tolist() == [0.1, 0.2, 0.3]
    for left, right in ((a, curve([1, 2, 3], [1, 1, 1])), (curve([1, 2, 3], [1, 1, 1]), a)):
        epochs = evaluate(parse("a + b"), {"a": left, "b": right}).epochs
        np.testing.assert_array_equal(epochs, [0.1, np.nan, 0.3])


def test_last_of_several_reports_at_one_batch_counts():
    found = evaluate(parse("a * 1"), {"a": curve([1, 1, 2], [5, 6, 7])})
    assert (found.batches.tolist(), found.values.tolist()) == ([1, 2], [6.0, 7.0])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("val_loss - loss", ("val_loss", "loss")),
        ("training.loss", ("training.loss",)),
        ('"opt/norm" * 2 + loss + loss', ("opt/norm", "loss")),
        (" loss ", ("loss",)),
        ("min", ("min",)),
    ],
)
def test_names_are_those_of_metrics(text, names):
    assert parse(text).names == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 + 2",
        "loss -",
        "loss; loss",
        "loss\nloss",
        "__import__('os').system('true')",
        "loss.__class__()",
        "().__class__",
        "''.join",
        "loss[0]",
        "[loss]",
        "{loss}",
        "lambda: loss",
        "loss if loss else loss",
        "loss < 1",
        "loss and loss",
        "not loss",
        "~loss",
        "loss // 2",
        "loss % 2",
        "loss @ loss",
        "(x := loss)",
        "f'{loss}'",
        "b'loss'",
        "loss + True",
        "loss + None",
        "loss + 1j",
        "loss + ...",
        "eval(loss)",
        "exp()",
        "exp(loss, loss)",
        "exp(x=loss)",
        "exp(loss, x=loss)",
        "exp(*loss)",
        "min(loss)",
        "ema(loss)",
        "ema(loss, 1)",
        "ema(loss, -0.1)",
        "ema(loss, loss)",
        "ema(loss, 'loss')",
        "abs(loss)(loss)",
        "loss\0",
        "(" * 240 + "loss" + ")" * 240,
        "-" * 490 + "loss",
        "-" * (MOST_DEPTH + 1) + "loss",
        "loss" + "+loss" * (MOST_DEPTH + 1),
        "loss + " + "1" * MOST_CHARACTERS,
    ],
)
def test_what_is_no_formula_over_metrics_is_refused(text):
    with pytest.raises(InvalidArgumentError, match=r"[.`]$"):
        parse(text)


@given(st.text("abl().,+-*/'\"0e9 <[{:=", max_size=60))
def test_any_text_is_an_expression_or_refused(text):
    try:
        expression = parse(text)
    except InvalidArgumentError:
        return
    evaluate(expression, {name: curve([1], [2]) for name in expression.names})


@pytest.mark.parametrize("number", ["9 ** 9 ** 9 ** 9", "9" * 400])
def test_large_numbers_overflow_to_gaps_at_once(number):
    found = evaluate(parse(f"loss + {number}"), {"loss": curve([1], [1])})
    assert found.values.tolist() == [np.inf]


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("loss", ("validation", "loss")),
        ("training.loss", ("training", "loss")),
        ("opt/norm", ("training", "opt/norm")),
        ("training.opt/norm", ("training", "opt/norm")),
        ("los", None),
    ],
)
def test_name_means_a_metric_of_one_group(text, metric):
    assert metric_of(text, _KNOWN) == metric


@pytest.mark.parametrize(
    ("text", "near"),
    [("val_los - loss", "val_loss"), ("trainig.loss", "training.loss"), ("'op/norm'", "opt/norm")],
)
def test_unknown_name_names_the_nearest_known(text, near):
    with pytest.raises(InvalidArgumentError, match=f"Did you mean `{near}`"):
        check_names(parse(text), _KNOWN)
    with pytest.raises(InvalidArgumentError, match="No metric was reported yet"):
        check_names(parse(text), set())
