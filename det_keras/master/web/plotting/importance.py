"""How much each hyperparameter explains of the differences between trials."""

from __future__ import annotations

import contextlib
import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from det_keras.master.web.plotting.points import Point, is_number

# With fewer trials, every method would report noise.
_LEAST_TRIALS = 4
# The time of fANOVA grows with the square of their number: 200 take a second, 2,000 take 45.
_MOST_TRIALS = 200
# It also grows with the number of hyperparameters and of trees. With many values there are fewer trees, so that the
# time stays about the same.
_MOST_TREES = 64
_LEAST_TREES = 16
_MOST_VALUES = 400 * _MOST_TREES
_SEED = 0
# Squares of larger metrics are not finite.
_LARGEST_METRIC = 1e150


@dataclass(frozen=True)
class Importance:
    """The importance of one hyperparameter.

    Attributes:
        name: its flat name.
        value: from 0 to 1. By fANOVA it is a share of the variance, without that of interactions.
    """

    name: str
    value: float


def importances(points: Sequence[Point], scales: Mapping[str, str]) -> tuple[str, list[Importance]]:
    """Return the method, and the importance of each hyperparameter, the largest first.

    fANOVA with the extra `search` (Optuna), of at most 200 trials drawn from them; otherwise the absolute rank
    correlation with the metric, or for texts the correlation ratio.

    Args:
        points: the trials; only those with a finite metric count.
        scales: `space.scales` of the experiment. Hyperparameters without a scale, such as choices of numbers, count
            too, if every trial has them.

    Source: Hutter, Hoos and Leyton-Brown, "An Efficient Approach for Assessing Hyperparameter Importance", ICML 2014.
    """
    finite = (point for point in points if math.isfinite(point.metric))
    known = _representable(sorted(finite, key=lambda point: point.trial_id))
    names = tuple(
        name
        for name in dict.fromkeys([*scales, *(name for point in known for name in point.hparams)])
        if all(name in point.hparams for point in known)
        and len({repr(point.hparams[name]) for point in known}) > 1
    )
    if len(known) < _LEAST_TRIALS or len({point.metric for point in known}) < 2 or not names:
        return "", []
    method, found = _measured(known, names, scales)
    order = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return method, [Importance(name, value) for name, value in order]


def _representable(points: Sequence[Point]) -> Sequence[Point]:
    """Return trials whose metrics have squares and differences; importances do not depend on their unit."""
    largest = max((abs(point.metric) for point in points), default=0.0)
    if largest < _LARGEST_METRIC:
        return points
    return [replace(point, metric=point.metric / largest) for point in points]


@dataclass(frozen=True)
class _Trials:
    """Trials to compare; equal to others with the same values.

    Attributes:
        text: the metrics and the values of all hyperparameters.
        names: of the hyperparameters.
        scales: of each hyperparameter; None for those without.
        points: the trials.
    """

    text: str
    names: tuple[str, ...]
    scales: tuple[str | None, ...]
    points: Sequence[Point] = field(compare=False)


def _measured(
    points: Sequence[Point], names: tuple[str, ...], scales: Mapping[str, str]
) -> tuple[str, dict[str, float]]:
    try:
        # Imported here: they are optional, and take a second.
        import optuna  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError:
        pass
    else:
        drawn = _drawn(points)
        text = repr([(point.metric, [point.hparams[name] for name in names]) for point in drawn])
        trials = _Trials(text, names, tuple(scales.get(name) for name in names), drawn)
        # Optuna 4 asserts that no variance is negative, which rounding can make it.
        with contextlib.suppress(AssertionError):
            return "fANOVA", _fanova(trials)
    columns = {name: [point.hparams[name] for point in points] for name in names}
    return "correlation", {name: _correlation(column, points) for name, column in columns.items()}


def _drawn(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most `_MOST_TRIALS` trials, drawn by their numbers: a new trial replaces at most one of them."""
    chosen = sorted(points, key=lambda point: zlib.crc32(b"%d" % point.trial_id))[:_MOST_TRIALS]
    return sorted(chosen, key=lambda point: point.trial_id)


# Several plots and pages ask for the same.
@functools.lru_cache(maxsize=16)
def _fanova(trials: _Trials) -> dict[str, float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    points, names = trials.points, trials.names
    distributions = {
        name: _distribution(optuna, [point.hparams[name] for point in points], scale)
        for name, scale in zip(names, trials.scales, strict=True)
    }
    texts = {name for name, one in distributions.items() if hasattr(one, "choices")}
    study = optuna.create_study()
    for point in points:
        params = {
            name: repr(point.hparams[name]) if name in texts else float(point.hparams[name]) for name in names
        }
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=distributions, value=point.metric)
        )
    trees = max(_LEAST_TREES, min(_MOST_TREES, _MOST_VALUES // (len(points) * len(names))))
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=trees, seed=_SEED)
    return {name: float(value) for name, value in evaluator.evaluate(study, params=list(names)).items()}


def _distribution(optuna: Any, values: Sequence[Any], scale: str | None) -> Any:
    if not all(is_number(value) for value in values):
        return optuna.distributions.CategoricalDistribution(sorted({repr(value) for value in values}))
    low, high = min(map(float, values)), max(map(float, values))
    if not math.isfinite(high - low):
        return optuna.distributions.CategoricalDistribution(sorted({repr(value) for value in values}))
    return optuna.distributions.FloatDistribution(low, high, log=scale == "log" and low > 0)


def _correlation(values: Sequence[Any], points: Sequence[Point]) -> float:
    metric = np.array([point.metric for point in points])
    if all(is_number(value) for value in values):
        x, y = _ranks(np.array(values, float)), _ranks(metric)
        return abs(float(np.corrcoef(x, y)[0, 1]))
    kinds = np.array([repr(value) for value in values])
    within = sum(
        float(((metric[kinds == kind] - metric[kinds == kind].mean()) ** 2).sum()) for kind in set(kinds)
    )
    return math.sqrt(max(0.0, 1.0 - within / float(((metric - metric.mean()) ** 2).sum())))


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = ((ends - counts + ends - 1) / 2)[inverse]
    return ranks
