"""Converts the budget of an old search to a number of trials."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def bracket_rungs(mode: str, max_rungs: int) -> list[int]:
    """Return the number of rungs of each bracket of an adaptive search, most first.

    Args:
        mode: `aggressive`, `standard` or `conservative`.
        max_rungs: number of rungs of the largest bracket.
    """
    fewest = {"aggressive": max_rungs, "standard": (max_rungs - 1) // 2 + 1, "conservative": 1}[mode]
    return list(range(max_rungs, fewest - 1, -1))


def trials_for_budget(length: int, budget: int, brackets: Sequence[int], divisor: float) -> int:
    """Return the number of trials that a search over `brackets` starts with a budget.

    Args:
        length: length of a fully trained trial.
        budget: total length of the search, in the same unit.
        brackets: number of rungs of each bracket.
        divisor: ratio of the lengths of two neighbouring rungs.
    """
    share = budget // len(brackets)
    return sum(_bracket_trials(length, share, rungs, divisor) for rungs in brackets)


def _bracket_trials(length: int, share: int, rungs: int, divisor: float) -> int:
    scales = [divisor ** (rungs - 1 - index) for index in range(rungs)]
    needs = [max(int(length / scale), 1) for scale in scales]
    starts = [max(int(scale), 1) for scale in scales]
    steps = [needs[0], *(later - earlier for earlier, later in pairwise(needs))]
    cost = sum(step * start for step, start in zip(steps, starts, strict=True))
    return max(int(share / cost * starts[0]), 1)
