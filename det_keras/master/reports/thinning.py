"""Curves with fewer points that look the same.

The method is MinMaxLTTB: the lowest and the highest point of many small bins are picked first, at numpy's speed, and
Largest-Triangle-Three-Buckets then chooses among them the points that an eye would miss most.

Sources: Steinarsson, "Downsampling Time Series for Visual Representation", University of Iceland 2013 (LTTB);
Van Der Donckt et al., "MinMaxLTTB: Leveraging MinMax-Preselection to Scale LTTB", IEEE VIS 2023.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["smooth", "thin"]

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

# Points picked beforehand for each one that is kept: from 4 on the paper finds no visible difference from plain LTTB.
_PRESELECTION = 4


def thin(x: npt.NDArray[Any], y: npt.NDArray[Any], most_points: int, *, log_x: bool = False) -> Indices:
    """Return the indices of at most `most_points` points that show the same curve.

    The first and the last point are kept, and so are the lowest and the highest: what a reader takes for the best
    value is the best value. A run of NaN or infinite values stays a gap, by one of its points; if there are more gaps
    than about a third of the points, the longest.

    Args:
        x: (points,), in the order of the curve.
        y: (points,).
        most_points: at least 4.
        log_x: the curve is looked at on a logarithmic axis, on which each decade of a positive `x` is as wide as the
            next.

    Returns:
        Ascending indices; all of them if there are no more than `most_points`.

    Raises:
        ValueError: `most_points` is below 4, or the lengths differ.
    """
    if most_points < 4:
        raise ValueError(f"A curve is thinned to at least 4 points, received {most_points}.")
    if len(x) != len(y):
        raise ValueError(f"`x` has {len(x)} points and `y` {len(y)}; they must have the same number.")
    points = len(x)
    if points <= most_points:
        return np.arange(points)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    is_finite = np.isfinite(x) & np.isfinite(y)
    finite = np.flatnonzero(is_finite)
    # The ends and the extremes take four.
    kept = np.union1d(_gaps(is_finite, (most_points - 4) // 3), [0, points - 1])
    if len(finite):
        kept = np.union1d(kept, [finite[y[finite].argmin()], finite[y[finite].argmax()]])
    # Ends and extremes are among what LTTB chooses more often than not, but nobody promises it.
    room = most_points - len(kept)
    if len(finite) > room:
        # Areas of triangles are compared, never told: scaling changes nothing but what would overflow.
        places = _scaled(_logarithms(x[finite]) if log_x else x[finite])
        finite = finite[_min_max_lttb(places, _scaled(y[finite]), room, by_x=log_x)]
    return np.union1d(kept, finite).astype(np.intp)


def smooth(values: npt.NDArray[Any], weight: float) -> Floats:
    """Return the exponential moving average of a curve, without the pull of its start towards zero.

    It is TensorBoard's: ``s = weight * s + (1 - weight) * value``, divided by ``1 - weight ** n``. Values that are not
    finite are passed through and forgotten.

    Args:
        values: (points,).
        weight: of the past, from 0 (none) to below 1.

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
    """Return the first index of each run of points that cannot be drawn; of the longest `most` if there are more."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], is_finite, [True])).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    if len(starts) > most:
        starts = starts[np.argsort(starts - ends, kind="stable")[:most]]
    return starts


def _min_max_lttb(x: Floats, y: Floats, points: int, *, by_x: bool) -> Indices:
    """Return which `points` of more finite points to keep."""
    if points < 3:
        return np.arange(points)
    # Bins of equal numbers would leave the thin end of an axis with a point or two; plain LTTB is fast enough there.
    if by_x:
        return _lttb(x, y, _edges_by_x(x, points))
    if len(x) <= _PRESELECTION * points:
        return _lttb(x, y, _edges(len(x), points))
    candidates = _min_max(y, _PRESELECTION * points // 2)
    return candidates[_lttb(x[candidates], y[candidates], _edges(len(candidates), points))]


def _logarithms(x: Floats) -> Floats:
    """Return where points stand on a logarithmic axis; those that it does not show stand at its beginning."""
    positive = x[x > 0]
    return np.log(np.maximum(x, positive.min())) if len(positive) else x


def _edges(count: int, points: int) -> Indices:
    """Return the first points of buckets of equal numbers: the first point stands alone before them."""
    return np.linspace(1, count - 1, points - 1).astype(np.intp)


def _edges_by_x(x: Floats, points: int) -> Indices:
    """Return the first points of buckets that are equally wide, where there are enough points for that."""
    order = np.arange(points - 1)
    edges = np.searchsorted(x, np.linspace(x[0], x[-1], points - 1))
    # Each has at least one.
    edges = np.maximum.accumulate(np.maximum(edges, 1) - order) + order
    edges = np.minimum(edges, len(x) - points + 1 + order)
    edges[-1] = len(x) - 1
    return edges.astype(np.intp)


def _scaled(values: Floats) -> Floats:
    # Halves first: the distance of two large numbers may be too large for a number.
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
    """Return the indices of one point more than there are edges, at least 3, by Largest-Triangle-Three-Buckets.

    Each bucket gives the point that spans the largest triangle with the point chosen before and the mean of the next
    bucket.
    """
    sizes = np.diff(np.append(edges, len(x)))
    mean_x = (np.add.reduceat(x, edges) / sizes)[1:].tolist()
    mean_y = (np.add.reduceat(y, edges) / sizes)[1:].tolist()
    bounds, xs, ys = edges.tolist(), x.tolist(), y.tolist()
    chosen = [0]
    # A point depends on the one before. Buckets are small, so that plain numbers are faster than arrays.
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
