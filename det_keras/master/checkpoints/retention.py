"""Selects the checkpoints of a finished experiment to keep, as a pure function of their records.

Source: the garbage collection rules of Determined 0.38.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from det_keras.protocol.metrics import rank


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
        uuid: UUID of the checkpoint.
        trial_id: number of its trial.
        steps_completed: batches trained when it was taken.
        metric: the searcher metric of the validation at the same batch; None without a validation.
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
    """Return the UUIDs of the checkpoints to keep.

    Args:
        candidates: the complete checkpoints of one experiment.
        retention: how many to keep.
        smaller_is_better: how metrics compare.
    """

    def place(candidate: Candidate) -> tuple[tuple[bool, float], float]:
        return rank(candidate.metric, smaller_is_better=smaller_is_better), candidate.validated

    ranked = sorted((candidate for candidate in candidates if candidate.metric is not None), key=place)
    latest_first = sorted(candidates, key=lambda candidate: -candidate.steps_completed)
    survivors = [
        *ranked[: retention.experiment_best],
        *_first_of_each_trial(ranked, retention.trial_best),
        *_first_of_each_trial(latest_first, retention.trial_latest),
    ]
    return {candidate.uuid for candidate in survivors}


def _first_of_each_trial(ordered: Iterable[Candidate], count: int) -> list[Candidate]:
    taken: dict[int, int] = defaultdict(int)
    result = []
    for candidate in ordered:
        if taken[candidate.trial_id] < count:
            taken[candidate.trial_id] += 1
            result.append(candidate)
    return result
