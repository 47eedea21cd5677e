"""Which checkpoints of a finished experiment are kept; a pure function of their records.

Source: the garbage collection rules of Determined 0.38.1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "Retention", "kept"]


@dataclass(frozen=True)
class Retention:
    """How many checkpoints to keep.

    Attributes:
        experiment_best: the best of the experiment.
        trial_best: the best of each trial.
        trial_latest: the latest of each trial.
    """

    experiment_best: int
    trial_best: int
    trial_latest: int


@dataclass(frozen=True)
class Candidate:
    """A completed checkpoint.

    Attributes:
        uuid: of the checkpoint.
        trial_id: of its trial.
        steps_completed: when it was taken.
        metric: the searcher metric of the validation at the same steps; None without one.
        validated: orders validations by time; any comparable number.
    """

    uuid: str
    trial_id: int
    steps_completed: int
    metric: float | None
    validated: float = 0.0


def kept(
    candidates: Sequence[Candidate], retention: Retention, *, smaller_is_better: bool = True
) -> set[str]:
    """Return the UUIDs of the checkpoints to keep."""
    sign = 1.0 if smaller_is_better else -1.0

    def badness(one: Candidate) -> tuple[float, float]:
        assert one.metric is not None
        # NaN is worse than everything.
        return (math.inf if math.isnan(one.metric) else sign * one.metric, one.validated)

    ranked = sorted((one for one in candidates if one.metric is not None), key=badness)
    latest_first = sorted(candidates, key=lambda one: -one.steps_completed)
    survivors = [
        *ranked[: retention.experiment_best],
        *_first_of_each_trial(ranked, retention.trial_best),
        *_first_of_each_trial(latest_first, retention.trial_latest),
    ]
    return {one.uuid for one in survivors}


def _first_of_each_trial(ordered: Iterable[Candidate], count: int) -> list[Candidate]:
    taken: dict[int, int] = defaultdict(int)
    result = []
    for one in ordered:
        if taken[one.trial_id] < count:
            taken[one.trial_id] += 1
            result.append(one)
    return result
