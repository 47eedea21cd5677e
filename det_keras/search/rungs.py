"""The arithmetic of successive halving: rungs, brackets and the number of trials in each.

A bracket has a list of lengths, its rungs. All of its trials train to the first rung, the best of them to the next,
and so on. More rungs stop poor trials earlier, fewer rungs compare trials after more training. An adaptive search
combines several brackets.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. The rounding is Determined's, so
that a config gives the same search in both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from det_keras.config.searching.budget import bracket_rungs
from det_keras.search.base import at_once


@dataclass(frozen=True)
class BracketPlan:
    """The plan of one bracket.

    Attributes:
        lengths: the lengths at which trials are compared, shortest first.
        trials: number of trials that count.
        concurrency: number of trials that train at the same time; 0 for as many as can fill all rungs.
        divisor: about one trial in `divisor` is promoted.
    """

    lengths: tuple[int, ...]
    trials: int
    concurrency: int
    divisor: float

    @property
    def first_trials(self) -> int:
        """Number of trials that start at once."""
        wanted = self.concurrency or int(self.divisor ** (len(self.lengths) - 1))
        return at_once(self.trials, max(wanted, 1))

    def endings(self) -> Mapping[int, int]:
        """Return the number of trials that end at each length if every rung is full before a promotion."""
        ending: Counter[int] = Counter()
        staying = self.trials
        for length in self.lengths[:-1]:
            promoted = max(int(staying / self.divisor), 1)
            ending[length] += staying - promoted
            staying = promoted
        ending[self.lengths[-1]] += staying
        return {length: count for length, count in sorted(ending.items()) if count}


def rung_lengths(rungs: int, divisor: float, max_length: int) -> tuple[int, ...]:
    """Return the lengths of a bracket's rungs; short ones may be equal.

    Args:
        rungs: number of rungs.
        divisor: ratio of the lengths of two neighbouring rungs.
        max_length: length of the last rung.
    """
    return tuple(max(int(max_length / divisor ** (rungs - 1 - index)), 1) for index in range(rungs))


def adaptive_brackets(
    mode: str, max_rungs: int, divisor: float, max_length: int, max_trials: int
) -> list[int]:
    """Return the number of rungs of each bracket, largest first, limited by length and trials.

    Args:
        mode: `aggressive` for only the tallest bracket, `standard` for the taller half, `conservative` for all.
        max_rungs: number of rungs of the tallest bracket.
        divisor: ratio of the lengths of two neighbouring rungs.
        max_length: length of a fully trained trial.
        max_trials: number of trials of the whole search.
    """
    # The quotient of logarithms is one too small for exact powers of some divisors, as in Determined.
    useful = min(int(math.log(amount) / math.log(divisor)) + 1 for amount in (max_length, max_trials))
    return bracket_rungs(mode, min(max_rungs, useful))


def plan_bracket(
    rungs: int, divisor: float, max_length: int, max_trials: int, max_concurrent_trials: int
) -> BracketPlan:
    """Return the plan of a search with one bracket.

    Args:
        rungs: number of rungs.
        divisor: ratio of the lengths of two neighbouring rungs.
        max_length: length of a fully trained trial.
        max_trials: number of trials.
        max_concurrent_trials: number of trials that train at the same time; 0 for as many as can fill all rungs.
    """
    return BracketPlan(
        rung_lengths(rungs, divisor, max_length), max_trials, max_concurrent_trials, float(divisor)
    )


def plan_brackets(
    brackets: Sequence[int], divisor: float, max_length: int, max_trials: int, max_concurrent_trials: int
) -> list[BracketPlan]:
    """Return the plans of a search with several brackets, tallest first.

    Args:
        brackets: number of rungs of each bracket.
        divisor: ratio of the lengths of two neighbouring rungs.
        max_length: length of a fully trained trial.
        max_trials: split over the brackets; each gets at least one, even beyond this number.
        max_concurrent_trials: split over the brackets in the same way; 0 for the minimum that keeps them running.
    """
    ordered = sorted(brackets, reverse=True)
    trials = _split_trials(ordered, divisor, max_trials)
    concurrency = _split_concurrency(trials, divisor, max_concurrent_trials)
    return [
        BracketPlan(rung_lengths(rungs, divisor, max_length), count, at_once, float(divisor))
        for rungs, count, at_once in zip(ordered, trials, concurrency, strict=True)
    ]


def _split_trials(brackets: Sequence[int], divisor: float, max_trials: int) -> list[int]:
    # With these weights all brackets take about the same amount of training.
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
