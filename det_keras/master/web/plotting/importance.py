"""How much each hyperparameter explains of the differences between trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from det_keras.master.web.plotting.figures import Point

__all__ = ["Importance", "importances"]

# With fewer trials, every method would report noise.
_LEAST_TRIALS = 4
_SEED = 0


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

    fANOVA with the extra `search` (Optuna); otherwise the absolute rank correlation with the metric, or for texts the
    correlation ratio.

    Args:
        points: the trials; only those with a finite metric count.
        scales: `space.scales` of the experiment. Hyperparameters without a scale, such as choices of numbers, count
            too, if every trial has them.

    Source: Hutter, Hoos and Leyton-Brown, "An Efficient Approach for Assessing Hyperparameter Importance", ICML 2014.
    """
    known = [point for point in points if math.isfinite(point.metric)]
    names = [
        name
        for name in dict.fromkeys([*scales, *(name for point in known for name in point.hparams)])
        if all(name in point.hparams for point in known)
        and len({repr(point.hparams[name]) for point in known}) > 1
    ]
    if len(known) < _LEAST_TRIALS or len({point.metric for point in known}) < 2 or not names:
        return "", []
    method, found = "fANOVA", _fanova(known, names, scales)
    if found is None:
        method = "correlation"
        found = {name: _correlation([point.hparams[name] for point in known], known) for name in names}
    order = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return method, [Importance(name, value) for name, value in order]


def _fanova(
    points: Sequence[Point], names: Sequence[str], scales: Mapping[str, str]
) -> dict[str, float] | None:
    """Return importances by fANOVA; None without Optuna and scikit-learn."""
    try:
        # Imported here: they are optional, and take a second.
        import optuna
        import sklearn  # noqa: F401
    except ImportError:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    columns = {name: [point.hparams[name] for point in points] for name in names}
    distributions = {
        name: _distribution(optuna, values, scales.get(name)) for name, values in columns.items()
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
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=_SEED)
    return {name: float(value) for name, value in evaluator.evaluate(study, params=list(names)).items()}


def _distribution(optuna: Any, values: Sequence[Any], scale: str | None) -> Any:
    if not all(_is_number(value) for value in values):
        return optuna.distributions.CategoricalDistribution(sorted({repr(value) for value in values}))
    low, high = min(map(float, values)), max(map(float, values))
    return optuna.distributions.FloatDistribution(low, high, log=scale == "log" and low > 0)


def _correlation(values: Sequence[Any], points: Sequence[Point]) -> float:
    metric = np.array([point.metric for point in points])
    if all(_is_number(value) for value in values):
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
