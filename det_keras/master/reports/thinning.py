"""Downsampling of curves that keeps their appearance.

The method is MinMaxLTTB. First the lowest and the highest point of many small bins are selected, at numpy's speed.
Largest-Triangle-Three-Buckets then selects among them the points that matter most for the appearance.

Sources: Steinarsson, "Downsampling Time Series for Visual Representation", University of Iceland 2013 (LTTB);
Van Der Donckt et al., "MinMaxLTTB: Leveraging MinMax-Preselection to Scale LTTB", IEEE VIS 2023.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

# Preselected points per kept point: from 4 on the paper finds no visible difference from plain LTTB.
_PRESELECTION = 4


def thin(x: npt.NDArray[Any], y: npt.NDArray[Any], most_points: int, *, log_x: bool = False) -> Indices:
    """Return the indices of at most `most_points` points that show the same curve.

    The first, last, lowest and highest points are kept, so the best visible value is the best value. A run of NaN or
    infinite values stays a gap, by one of its points; if there are more gaps than about a third of the points, only
    the longest gaps stay.

    Args:
        x: (points,), in the order of the curve.
        y: (points,).
        most_points: maximum number of points, at least 4.
        log_x: whether the x axis is logarithmic, so that each decade of a positive `x` has the same width.

    Returns:
        Ascending indices; all indices if there are no more than `most_points`.

    Raises:
        ValueError: `most_points` is below 4, or the lengths differ.
    """
    if most_points < 4:
        raise ValueError(f"A curve needs at least 4 points, received {most_points}.")
    if len(x) != len(y):
        raise ValueError(f"`x` has {len(x)} points and `y` {len(y)}; they must have the same number.")
    points = len(x)
    if points <= most_points:
        return np.arange(points)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    is_finite = np.isfinite(x) & np.isfinite(y)
    finite = np.flatnonzero(is_finite)
    # Four points are for the ends and the extremes.
    kept = np.union1d(_gaps(is_finite, (most_points - 4) // 3), [0, points - 1])
    if len(finite):
        kept = np.union1d(kept, [finite[y[finite].argmin()], finite[y[finite].argmax()]])
    # LTTB selects ends and extremes in most cases, but not always.
    most_others = most_points - len(kept)
    if len(finite) > most_others:
        # Areas of triangles are only compared: scaling does not change the result and prevents overflow.
        places = _scaled(_logarithms(x[finite]) if log_x else x[finite])
        finite = finite[_min_max_lttb(places, _scaled(y[finite]), most_others, by_x=log_x)]
    return np.union1d(kept, finite).astype(np.intp)


def smooth(values: npt.NDArray[Any], weight: float) -> Floats:
    """Return the exponential moving average of a curve, corrected for its start at zero.

    As in TensorBoard: ``s = weight * s + (1 - weight) * value``, divided by ``1 - weight ** n``. Values that are not
    finite are returned unchanged and do not enter the average.

    Args:
        values: (points,).
        weight: weight of earlier values, from 0 (no smoothing) to below 1.

    Raises:
        ValueError: `weight` is out of bounds.
    """
    if not 0.0 <= weight < 1.0:
        raise ValueError(f"Smoothing must be at least 0 and below 1, received {weight}.")
    result = np.array(values, np.float64)
    is_finite = np.isfinite(result)
    finite = result[is_finite]
    if weight == 0.0 or not len(finite) or (finite == finite[0]).all():
        return result
    average, rest = 0.0, 1.0
    averages = []
    for value in finite.tolist():
        average = weight * average + (1.0 - weight) * value
        rest *= weight
        averages.append(average / (1.0 - rest))
    result[is_finite] = averages
    return result


def _gaps(is_finite: npt.NDArray[np.bool_], most: int) -> Indices:
    """Return the first index of each run of points that are not finite, for the `most` longest runs."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], is_finite, [True])).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    if len(starts) > most:
        starts = starts[np.argsort(starts - ends, kind="stable")[:most]]
    return starts


def _min_max_lttb(x: Floats, y: Floats, points: int, *, by_x: bool) -> Indices:
    """Return the indices of the `points` points to keep; all points are finite."""
    if points < 3:
        return np.arange(points)
    # Bins with equal numbers of points would leave few points at the sparse end of the axis; plain LTTB is fast enough.
    if by_x:
        return _lttb(x, y, _edges_by_x(x, points))
    if len(x) <= _PRESELECTION * points:
        return _lttb(x, y, _edges(len(x), points))
    candidates = _min_max(y, _PRESELECTION * points // 2)
    return candidates[_lttb(x[candidates], y[candidates], _edges(len(candidates), points))]


def _logarithms(x: Floats) -> Floats:
    """Return positions on a logarithmic axis; points that are not positive are placed at its beginning."""
    positive = x[x > 0]
    return np.log(np.maximum(x, positive.min())) if len(positive) else x


def _edges(count: int, points: int) -> Indices:
    """Return the first points of buckets with equal numbers of points; the first point is in none of them."""
    return np.linspace(1, count - 1, points - 1).astype(np.intp)


def _edges_by_x(x: Floats, points: int) -> Indices:
    """Return the first points of buckets of equal width, where there are enough points."""
    order = np.arange(points - 1)
    edges = np.searchsorted(x, np.linspace(x[0], x[-1], points - 1))
    # Each bucket has at least one point.
    edges = np.maximum.accumulate(np.maximum(edges, 1) - order) + order
    edges = np.minimum(edges, len(x) - points + 1 + order)
    edges[-1] = len(x) - 1
    return edges.astype(np.intp)


def _scaled(values: Floats) -> Floats:
    # Halved first: the difference of two large numbers may overflow.
    low, high = values.min() / 2, values.max() / 2
    return values if high == low else (values / 2 - low) / (high - low)


def _min_max(y: Floats, bins: int) -> Indices:
    """Return the indices of the lowest and the highest point of each of `bins` bins, and of both ends."""
    width = -(-len(y) // bins)
    padded = np.pad(y, (0, -len(y) % width), mode="edge").reshape(-1, width)
    starts = np.arange(len(padded)) * width
    picked = np.concatenate((starts + padded.argmin(axis=1), starts + padded.argmax(axis=1), [0, len(y) - 1]))
    unique: Indices = np.unique(np.minimum(picked, len(y) - 1))
    return unique


def _lttb(x: Floats, y: Floats, edges: Indices) -> Indices:
    """Return the indices of one point more than there are edges, by Largest-Triangle-Three-Buckets.

    From each bucket it selects the point that spans the largest triangle with the previously selected point and the
    mean of the next bucket. There are at least 3 points.
    """
    sizes = np.diff(np.append(edges, len(x)))
    mean_x = (np.add.reduceat(x, edges) / sizes)[1:].tolist()
    mean_y = (np.add.reduceat(y, edges) / sizes)[1:].tolist()
    bounds, xs, ys = edges.tolist(), x.tolist(), y.tolist()
    chosen = [0]
    # Each point depends on the previous one. Buckets are small, so plain numbers are faster than arrays.
    for start, end, next_x, next_y in zip(bounds, bounds[1:], mean_x, mean_y, strict=False):
        last_x, last_y = xs[chosen[-1]], ys[chosen[-1]]
        run, rise = last_x - next_x, next_y - last_y
        best, largest = start, -1.0
        for i in range(start, end):
            area = abs(run * (ys[i] - last_y) - (last_x - xs[i]) * rise)
            if area > largest:
                best, largest = i, area
        chosen.append(best)
    chosen.append(len(xs) - 1)
    return np.array(chosen, np.intp)
