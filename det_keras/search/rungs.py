"""The arithmetic of successive halving: rungs, brackets and how trials are split over them.

A bracket is a ladder of lengths, its rungs: all of its trials train to the first, the best of them to the next,
and so on. More rungs stop poor trials earlier, fewer judge them by more; an adaptive search hedges by running
several brackets side by side.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020; the rounding is
Determined's, so that a config plans the same search here and there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from det_keras.config.searching.budget import bracket_rungs

__all__ = ["BracketPlan", "adaptive_brackets", "plan_bracket", "plan_brackets", "rung_lengths"]


@dataclass(frozen=True)
class BracketPlan:
    """What one bracket sets out to do.

    Attributes:
        lengths: at which trials are compared, shortest first.
        trials: how many count.
        concurrency: how many train at a time; 0 for as many as can fill the ladder.
        divisor: about one trial in so many moves up.
    """

    lengths: tuple[int, ...]
    trials: int
    concurrency: int
    divisor: float

    @property
    def first_trials(self) -> int:
        """How many trials start at once."""
        wanted = self.concurrency or int(self.divisor ** (len(self.lengths) - 1))
        return min(max(wanted, 1), self.trials)

    def endings(self) -> Mapping[int, int]:
        """Return how many trials would end at which length, were every rung full before anyone moved up."""
        ending: Counter[int] = Counter()
        staying = self.trials
        for length in self.lengths[:-1]:
            promoted = max(int(staying / self.divisor), 1)
            ending[length] += staying - promoted
            staying = promoted
        ending[self.lengths[-1]] += staying
        return {length: count for length, count in sorted(ending.items()) if count}


def rung_lengths(rungs: int, divisor: float, max_length: int) -> tuple[int, ...]:
    """Return the lengths of a bracket's rungs; the last is `max_length`, and short ones may be equal."""
    return tuple(max(int(max_length / divisor ** (rungs - 1 - index)), 1) for index in range(rungs))


def adaptive_brackets(
    mode: str, max_rungs: int, divisor: float, max_length: int, max_trials: int
) -> list[int]:
    """Return the number of rungs of each bracket, most first, no more than length and trials can use.

    Args:
        mode: `aggressive` for the tallest bracket alone, `standard` for the taller half, `conservative` for all.
        max_rungs: of the tallest.
        divisor: from one rung to the next.
        max_length: of a fully trained trial.
        max_trials: of the whole search.
    """
    # The plain quotient of logarithms counts one too few for exact powers of some divisors; so does Determined.
    useful = min(int(math.log(amount) / math.log(divisor)) + 1 for amount in (max_length, max_trials))
    return bracket_rungs(mode, min(max_rungs, useful))


def plan_bracket(
    rungs: int, divisor: float, max_length: int, max_trials: int, max_concurrent_trials: int
) -> BracketPlan:
    """Return the plan of a search of one bracket."""
    return BracketPlan(
        rung_lengths(rungs, divisor, max_length), max_trials, max_concurrent_trials, float(divisor)
    )


def plan_brackets(
    brackets: Sequence[int], divisor: float, max_length: int, max_trials: int, max_concurrent_trials: int
) -> list[BracketPlan]:
    """Return the plans of a search of several brackets, the tallest first.

    Args:
        brackets: the number of rungs of each.
        divisor: from one rung to the next.
        max_length: of a fully trained trial.
        max_trials: to split over the brackets; each gets at least one, even beyond this number.
        max_concurrent_trials: to split over the brackets, likewise; 0 for as few as keep the brackets going.
    """
    ordered = sorted(brackets, reverse=True)
    trials = _split_trials(ordered, divisor, max_trials)
    concurrency = _split_concurrency(trials, divisor, max_concurrent_trials)
    return [
        BracketPlan(rung_lengths(rungs, divisor, max_length), count, at_once, float(divisor))
        for rungs, count, at_once in zip(ordered, trials, concurrency, strict=True)
    ]


def _split_trials(brackets: Sequence[int], divisor: float, max_trials: int) -> list[int]:
    # In proportion to what makes the brackets cost about the same.
    weights = [divisor ** (rungs - 1) / rungs for rungs in brackets]
    trials = [max(int(weight / sum(weights) * max_trials), 1) for weight in weights]
    trials[0] += max(max_trials - sum(trials), 0)
    return trials


def _split_concurrency(trials: Sequence[int], divisor: float, max_concurrent_trials: int) -> list[int]:
    count = len(trials)
    if max_concurrent_trials == 0:
        return [max(trials[-1], int(divisor))] * count
    share, extra = divmod(max(max_concurrent_trials, count), count)
    return [share + (index < extra) for index in range(count)]
