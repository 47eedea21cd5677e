"""Curves of several trials over one axis, small enough to be drawn at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from det_keras.master.reports.points import Floats

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Aligned:
    """Curves over a common axis.

    Attributes:
        x: (positions,), ascending.
        y: one array per curve, (positions,): its values at `x`.
        present: one array per curve, (positions,): whether it has a value there. A value that is present and NaN is a
            gap in the curve; one that is absent is not.
        total: number of points of all curves in the range.
    """

    x: Floats
    y: Sequence[Floats]
    present: Sequence[Mask]
    total: int


def align(
    curves: Sequence[tuple[Floats, Floats]],
    *,
    most: int,
    start: float | None = None,
    end: float | None = None,
    log_x: bool = False,
) -> Aligned:
    """Return curves over a common axis.

    If all positions fit, they are exact. Otherwise the axis is cut into bins, and each curve keeps the smallest and the
    largest value of each bin, in their order: no spike is lost, and the picture at this resolution is the same.

    Args:
        curves: (x, values) of each curve; x ascending, of the same length.
        most: maximum number of positions, at least 4.
        start: begin of the range; None for the first point. The neighbour outside of the range is kept, so that a line
            reaches the edge.
        end: end of the range; None for the last point.
        log_x: whether the bins have the same width on a logarithmic axis.

    Raises:
        ValueError: `most` is below 4.
    """
    if most < 4:
        raise ValueError(f"`most` must be at least 4, received {most}.")
    parts = [_part(x, y, start, end) for x, y in curves]
    total = sum(len(x) for x, _ in parts)
    union = np.unique(np.concatenate([x for x, _ in parts])) if parts else np.empty(0)
    if len(union) <= most:
        placed = [_placed(union, x, y) for x, y in parts]
    else:
        edges = _edges(union, most // 2, log_x=log_x)
        union = _positions(edges)
        placed = [_binned(edges, x, y) for x, y in parts]
    return Aligned(union, [y for y, _ in placed], [present for _, present in placed], total)


def _part(x: Floats, y: Floats, start: float | None, end: float | None) -> tuple[Floats, Floats]:
    known = np.isfinite(x)
    x, y = x[known].astype(np.float64), y[known]
    if np.any(np.diff(x) < 0):
        # A user may report any epochs.
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    first = 0 if start is None else max(0, int(np.searchsorted(x, start, "left")) - 1)
    behind = len(x) if end is None else min(len(x), int(np.searchsorted(x, end, "right")) + 1)
    return x[first:behind], y[first:behind]


def _placed(union: Floats, x: Floats, y: Floats) -> tuple[Floats, Mask]:
    values, present = np.full(len(union), np.nan), np.zeros(len(union), bool)
    places = np.searchsorted(union, x)
    # The last of several reports at one position counts.
    values[places], present[places] = y, True
    return values, present


def _edges(union: Floats, bins: int, *, log_x: bool) -> Floats:
    low, high = union[0], union[-1]
    if log_x and high > 0:
        # Positions that are not positive are not drawn.
        low = union[union > 0][0]
        edges: Floats = np.geomspace(low, high, bins + 1) if high > low else np.array([low, high])
    else:
        edges = np.linspace(low, high, bins + 1)
    return edges


def _positions(edges: Floats) -> Floats:
    """Return two positions in each bin."""
    widths = np.diff(edges)
    positions: Floats = np.stack((edges[:-1] + widths / 4, edges[:-1] + 3 * widths / 4), axis=1).ravel()
    return positions


def _binned(edges: Floats, x: Floats, y: Floats) -> tuple[Floats, Mask]:
    bins = len(edges) - 1
    values, present = np.full((bins, 2), np.nan), np.zeros((bins, 2), bool)
    inside = x >= edges[0]
    x, y = x[inside], y[inside]
    place = np.clip(np.searchsorted(edges, x, "right") - 1, 0, bins - 1)
    if len(place) == 0:
        return values.ravel(), present.ravel()
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
    filled, counts = place[starts], np.diff(np.r_[starts, len(place)])
    finite = np.isfinite(y)
    low, high = np.where(finite, y, np.inf), np.where(finite, y, -np.inf)
    smallest, largest = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
    # Which of the two comes first: the last position of the largest against that of the smallest.
    index, of = np.arange(len(place)), np.repeat(np.arange(len(starts)), counts)
    at_low = np.maximum.reduceat(np.where(low == smallest[of], index, -1), starts)
    at_high = np.maximum.reduceat(np.where(high == largest[of], index, -1), starts)
    rises = at_low <= at_high
    has_any = np.isfinite(smallest)
    values[filled, 0] = np.where(has_any, np.where(rises, smallest, largest), np.nan)
    values[filled, 1] = np.where(has_any, np.where(rises, largest, smallest), np.nan)
    present[filled, 0] = True
    present[filled, 1] = counts > 1
    return values.ravel(), present.ravel()
