"""What curves and runs say in words: that a trial overfits since a point, or makes no progress any more; and whether
two groups of runs differ by more than their seeds.

Only what stands out of the noise of the curve is said. The noise is the spread of the differences between neighbouring
values, so a metric that jumps has to change more than a smooth one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from det_keras.master.reports.points import Floats

# Shorter curves say nothing.
_FEWEST_POINTS = 6
# A rise or a standstill lasts for so much of the curve.
_LEAST_PART = 0.25
_LEAST_POINTS = 3
# How far a value has to be from the best, in deviations of the noise.
_NOISE = 3.0
# Of the whole progress: less than this is none.
_NO_PROGRESS = 0.01
# Ways to divide runs into two groups that are looked at.
_MOST_DIVISIONS = 20_000
#: Two groups of runs differ if chance alone would do it less often.
LEAST_CHANCE = 0.05


@dataclass(frozen=True)
class Verdict:
    """Something that a curve says.

    Attributes:
        kind: ``overfits`` or ``plateau``.
        place: index of the point since which it holds.
    """

    kind: str
    place: int


def verdict(validation: Floats, training: Floats | None, *, smaller_is_better: bool) -> Verdict | None:
    """Return what stands out in a metric; None if nothing does.

    Args:
        validation: (points,): the metric on validation data.
        training: (points,): the same metric on training data at the same points, NaN where it was not reported; None if
            it never was.
        smaller_is_better: how the metric compares.

    Returns:
        ``overfits`` since the best point, if the metric became worse on validation data while it became better on
        training data. ``plateau`` since the best point, if nothing better came for a quarter of the curve, and nothing
        much better since the point before.

    Example:
        ```pycon
        >>> import numpy as np
        >>> falling, rising = np.linspace(1, 0.5, 10), np.linspace(0.5, 0.9, 10)
        >>> both = np.concatenate([falling, rising])
        >>> verdict(both, np.linspace(1, 0.1, 20), smaller_is_better=True)
        Verdict(kind='overfits', place=9)
        ```
    """
    sign = 1.0 if smaller_is_better else -1.0
    values = sign * validation
    if len(values) < _FEWEST_POINTS or not np.isfinite(values).all():
        return None
    best = int(np.argmin(values))
    since = len(values) - 1 - best
    noise = _noise(values)
    # The best of many values is one of luck, that of their means is not.
    level = float(np.min(_means(values)))
    if since >= max(_LEAST_POINTS, _LEAST_PART * len(values)):
        end = values[-max(_LEAST_POINTS, since // 2) :]
        is_worse = float(np.mean(end)) - level > _NOISE * noise
        if is_worse and training is not None and _falls(sign * training[best:]):
            return Verdict("overfits", best)
    return _plateau(values, level, noise)


def _plateau(values: Floats, level: float, noise: float) -> Verdict | None:
    """Return since where the values stay within the noise, after progress that did not."""
    progress = float(np.mean(values[:2])) - level
    if progress <= _NOISE * noise:
        return None
    best_so_far = np.minimum.accumulate(values)
    left = best_so_far - best_so_far[-1]
    place = int(np.argmax(left <= max(_NO_PROGRESS * progress, noise)))
    if len(values) - 1 - place < max(_LEAST_POINTS, _LEAST_PART * len(values)):
        return None
    # Values that became worse are no plateau.
    is_level = abs(float(np.mean(values[-_LEAST_POINTS:])) - float(best_so_far[-1])) <= max(
        _NO_PROGRESS * progress, _NOISE * noise
    )
    return Verdict("plateau", place) if is_level else None


def _means(values: Floats) -> Floats:
    """Return the mean of each value and its neighbours."""
    width = 5 if len(values) >= 2 * _FEWEST_POINTS else 3
    return np.convolve(values, np.full(width, 1 / width), mode="valid")


def _noise(values: Floats) -> float:
    """Return the deviation of a value from its neighbours: a slope alone is none."""
    bends = values[2:] - 2 * values[1:-1] + values[:-2]
    # The median is not moved by the few steps of a learning rate. A bend has the variance of six values.
    return float(np.median(np.abs(bends)) / 0.6745 / np.sqrt(6.0))


def _falls(values: Floats) -> bool:
    known = values[np.isfinite(values)]
    return len(known) > 1 and float(known[-1]) < float(known[0])


def chance(first: Sequence[float], second: Sequence[float]) -> float:
    """Return how often two groups of runs would differ as much by chance alone (a permutation test of the means).

    All ways to divide the runs into groups of these sizes are counted; of more than 20,000, so many drawn ones.

    Args:
        first: the values of the runs of one group, which differ by their seeds only.
        second: those of the other.

    Example:
        ```pycon
        >>> chance([0.1, 0.2, 0.3], [0.8, 0.9, 1.0])
        0.1
        ```
    """
    values = np.asarray([*first, *second], dtype=np.float64)
    size, count = len(first), len(values)
    observed = abs(float(np.mean(first)) - float(np.mean(second)))
    total = values.sum()
    if math.comb(count, size) <= _MOST_DIVISIONS:
        chosen = np.array(list(itertools.combinations(range(count), size)))
    else:
        draw = np.random.default_rng(0)
        chosen = np.array([draw.permutation(count)[:size] for _ in range(_MOST_DIVISIONS)])
    sums = values[chosen].sum(axis=1)
    differences = np.abs(sums / size - (total - sums) / (count - size))
    # Sums in another order differ in their last bits.
    return float(np.mean(differences >= observed - 1e-9 * max(1.0, abs(observed))))


def fewest_runs() -> int:
    """Return how many runs two groups of the same size need at least, so that a difference can stand out."""
    return next(size for size in itertools.count(2) if 2 / math.comb(2 * size, size) <= LEAST_CHANCE)
