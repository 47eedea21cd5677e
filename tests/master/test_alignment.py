"""Curves over one axis: exact while they fit, and never without their extremes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from det_keras.master.reports.alignment import align

_VALUES = st.one_of(st.floats(-1e6, 1e6), st.just(float("nan")))
_CURVES = st.lists(
    st.integers(1, 200).flatmap(
        lambda count: st.tuples(
            st.lists(st.integers(0, 10_000), min_size=count, max_size=count, unique=True).map(
                lambda x: np.array(sorted(x), float)
            ),
            arrays(float, count, elements=_VALUES),
        )
    ),
    min_size=1,
    max_size=4,
)


@given(_CURVES)
def test_curves_that_fit_are_exact(curves):
    aligned = align(curves, most=10_000)
    for (x, y), values, present in zip(curves, aligned.y, aligned.present, strict=True):
        np.testing.assert_array_equal(aligned.x[present], x)
        np.testing.assert_array_equal(values[present], y)


@given(_CURVES, st.integers(4, 60), st.booleans())
def test_no_extreme_of_a_curve_is_lost(curves, most, log_x):
    aligned = align(curves, most=most, log_x=log_x)
    assert len(aligned.x) <= most
    assert np.all(np.diff(aligned.x) >= 0)
    for (x, y), values, present in zip(curves, aligned.y, aligned.present, strict=True):
        drawn = y[x > 0] if log_x and len(np.unique(np.concatenate([one for one, _ in curves]))) > most else y
        finite = drawn[np.isfinite(drawn)]
        if len(finite):
            shown = values[present & np.isfinite(values)]
            assert (shown.min(), shown.max()) == (finite.min(), finite.max())


def test_order_of_the_extremes_in_a_bin_is_kept():
    x = np.arange(1000.0)
    rising = align([(x, x)], most=20)
    assert np.all(np.diff(rising.y[0]) > 0)
    falling = align([(x, -x)], most=20)
    assert np.all(np.diff(falling.y[0]) < 0)


def test_range_keeps_the_neighbours_so_that_lines_reach_the_edges():
    x = np.arange(0.0, 100.0, 10.0)
    aligned = align([(x, x)], most=100, start=35.0, end=55.0)
    assert aligned.x.tolist() == [30.0, 40.0, 50.0, 60.0]


def test_zoom_shows_what_the_overview_joined():
    x = np.arange(100_000.0)
    y = np.sin(x)
    overview, zoomed = align([(x, y)], most=400), align([(x, y)], most=400, start=500, end=700)
    assert len(overview.x) <= 400
    np.testing.assert_array_equal(zoomed.y[0], y[499:702])


def test_gap_is_a_gap_and_a_missing_value_is_none():
    aligned = align(
        [(np.array([1.0, 2.0, 3.0]), np.array([1.0, np.nan, 3.0])), (np.array([1.0]), np.array([5.0]))],
        most=4,
    )
    assert aligned.present[0].tolist() == [True, True, True]
    assert np.isnan(aligned.y[0][1])
    assert aligned.present[1].tolist() == [True, False, False]


def test_axis_without_positions_is_empty():
    assert len(align([], most=10).x) == 0
    nothing = np.array([np.nan, np.nan])
    assert len(align([(nothing, np.ones(2))], most=10).x) == 0
    with pytest.raises(ValueError, match="at least 4"):
        align([], most=3)
