"""Curves with fewer points: what is kept whatever they look like."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from det_keras.master.reports.thinning import smooth, thin

VALUES = st.floats(allow_nan=True, allow_infinity=True, width=64)
CURVES = arrays.arrays(np.float64, st.integers(0, 400), elements=VALUES)


@given(CURVES, st.integers(4, 60), st.booleans())
@settings(deadline=None)
def test_any_curve_keeps_its_ends_and_extremes(y, most_points, log_x):
    kept = thin(np.arange(len(y)) * 10, y, most_points, log_x=log_x)
    assert len(kept) <= most_points
    assert (np.diff(kept) > 0).all()
    if len(y) <= most_points:
        assert len(kept) == len(y)
        return
    assert kept[0] == 0
    assert kept[-1] == len(y) - 1
    finite = y[np.isfinite(y)]
    if len(finite):
        shown = y[kept]
        assert finite.min() in shown
        assert finite.max() in shown


@given(
    arrays.arrays(np.float64, st.integers(50, 400), elements=st.floats(-1e300, 1e300)),
    st.integers(6, 40),
    st.booleans(),
)
@settings(deadline=None)
def test_a_curve_without_gaps_uses_its_points(y, most_points, log_x):
    kept = thin(np.arange(len(y)), y, most_points, log_x=log_x)
    # The extremes may be among those that were chosen anyway, and so are the ends.
    assert most_points - 4 <= len(kept) <= most_points


def test_a_run_of_nan_stays_a_gap():
    y = np.sin(np.arange(5000) / 50)
    y[2000:2100] = np.nan
    y[3000] = np.inf
    kept = thin(np.arange(5000), y, 100)
    gaps = kept[~np.isfinite(y[kept])]
    assert list(gaps) == [2000, 3000]
    assert ((kept > 1900) & (kept < 2000)).any()
    assert ((kept >= 2100) & (kept < 2200)).any()


def test_of_many_gaps_the_longest_stay():
    y = np.ones(1000)
    y[::2] = np.nan
    y[501:520] = np.nan
    kept = thin(np.arange(1000), y, 60)
    assert len(kept) <= 60
    assert 500 in kept
    assert np.isfinite(y[kept]).sum() >= 30


def test_a_curve_of_nothing_but_nan_keeps_its_ends():
    assert list(thin(np.arange(100), np.full(100, np.nan), 10)) == [0, 99]


def test_a_spike_among_many_points_is_kept():
    rng = np.random.default_rng(0)
    y = rng.normal(size=100_000) * 1e-3
    y[77_777] = 1.0
    assert 77_777 in thin(np.arange(100_000), y, 500)


def test_a_thinned_curve_covers_the_same_pixels():
    x = np.arange(20_000)
    y = np.exp(-x / 5000) + np.random.default_rng(1).normal(size=20_000) * 0.05

    def error(kept):
        """Return by how much the line of a column of pixels is too short, on average; there are 400."""
        columns = y.reshape(400, 50)
        shown = np.full(20_000, np.nan)
        shown[kept] = y[kept]
        shown = shown.reshape(400, 50)
        return np.mean(np.nanmin(shown, 1) - columns.min(1) + columns.max(1) - np.nanmax(shown, 1))

    assert error(thin(x, y, 2000)) < 0.02
    assert error(thin(x, y, 2000)) < error(np.arange(0, 20_000, 10)) / 5


def test_each_decade_of_a_logarithmic_axis_has_its_points():
    x = np.arange(100_000)
    y = np.random.default_rng(2).normal(size=len(x))
    kept = thin(x, y, 500, log_x=True)
    counts = [((kept >= low) & (kept < 10 * low)).sum() for low in (10, 100, 1000, 10_000)]
    # A hundred for each of the five decades; the first, which has nine points, leaves its own to the next.
    assert min(counts) >= 90
    # Of a linear axis this is the first thousandth.
    assert (thin(x, y, 500) < 100).sum() < 5


@pytest.mark.parametrize(
    ("x", "y", "most"), [([1, 2], [1, 2], 3), ([1, 2, 3], [1, 2], 10)], ids=["few", "lengths"]
)
def test_what_cannot_be_thinned_is_refused(x, y, most):
    with pytest.raises(ValueError, match="points"):
        thin(np.array(x), np.array(y), most)


def test_smoothing_is_tensorboards():
    # By the loop of TensorBoard's own line chart.
    values, weight = [3.0, 1.0, float("nan"), 4.0, 1.0, 5.0], 0.6
    expected, last, count = [], 0.0, 0
    for value in values:
        if not np.isfinite(value):
            expected.append(value)
            continue
        last = last * weight + (1 - weight) * value
        count += 1
        expected.append(last / (1 - weight**count))
    np.testing.assert_allclose(smooth(np.array(values), weight), expected, rtol=1e-15)


def test_smoothing_by_nothing_changes_nothing():
    values = np.array([1.0, np.nan, -np.inf, 2.0])
    np.testing.assert_array_equal(smooth(values, 0.0), values)


def test_a_constant_stays_exactly_what_it_is():
    np.testing.assert_array_equal(smooth(np.full(50, 0.1), 0.9), np.full(50, 0.1))


def test_smoothing_by_everything_is_refused():
    with pytest.raises(ValueError, match="below 1"):
        smooth(np.ones(3), 1.0)
