"""Random search: a number of trials with random samples, each trained fully; and no search, which is one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from det_keras.search.base import (
    Action,
    Close,
    Create,
    Draw,
    ExitedReason,
    SearchMethod,
    ValidateAfter,
    WorkDone,
    at_once,
    refused_too_often,
)


class RandomSearch(SearchMethod):
    """Trains `max_trials` samples of the space, at most `max_concurrent_trials` at a time.

    A trial whose script refuses its hyperparameters does not count and is replaced. A trial that fails or is cancelled
    counts.

    Args:
        max_trials: number of trials that count.
        max_concurrent_trials: maximum number of running trials; 0 for `MOST_AT_ONCE`.
        max_length: the length of each trial, in the unit of the config; None if the scripts decide.
    """

    def __init__(
        self, max_trials: int, max_concurrent_trials: int = 0, max_length: int | None = None
    ) -> None:
        self._max_trials = max_trials
        self._max_concurrent_trials = max_concurrent_trials
        self._max_length = max_length
        self.gives_lengths = max_length is not None
        self._created = 0
        self._replaced = 0
        self._to_replace: set[str] = set()

    def initial(self, draw: Draw) -> list[Action]:
        count = at_once(self._max_trials, self._max_concurrent_trials)
        return [action for _ in range(count) for action in self._next_trial(draw)]

    def trial_exited_early(self, draw: Draw, request_id: str, reason: ExitedReason) -> list[Action]:
        if reason.is_invalid_hp:
            self._to_replace.add(request_id)
        return []

    def trial_exited(self, draw: Draw, request_id: str) -> list[Action]:
        if request_id in self._to_replace:
            self._to_replace.discard(request_id)
            return self._replacement(draw)
        return self._next_trial(draw) if self._created < self._max_trials else []

    def withdrawn(self, draw: Draw, request_id: str) -> list[Action]:
        return self._trial(draw)

    def progress(self, work: WorkDone) -> float:
        full = float(self._max_length or 1)
        done = math.fsum(min(length, full) for length in work.lengths)
        return (full * (work.ended - work.invalid) + done) / (full * self._max_trials)

    @property
    def full_length(self) -> int | None:
        return self._max_length

    def planned_trials(self) -> int:
        return self._max_trials

    def snapshot(self) -> dict[str, Any]:
        return {
            "created": self._created,
            "replaced": self._replaced,
            "to_replace": sorted(self._to_replace),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._created = state["created"]
        self._replaced = state["replaced"]
        self._to_replace = set(state["to_replace"])

    def _next_trial(self, draw: Draw) -> list[Action]:
        self._created += 1
        return self._trial(draw)

    def _replacement(self, draw: Draw) -> list[Action]:
        refused = refused_too_often(self._replaced, self._max_trials)
        if refused is not None:
            return [refused]
        self._replaced += 1
        return self._trial(draw)

    def _trial(self, draw: Draw) -> list[Action]:
        create = self._create(draw)
        if self._max_length is None:
            return [create]
        return [create, ValidateAfter(create.request_id, self._max_length), Close(create.request_id)]

    def _create(self, draw: Draw) -> Create:
        return draw.create()


class SingleSearch(RandomSearch):
    """Random search with one trial, which is never replaced.

    Args:
        max_length: the trial's length, in the unit of the config; None if the script decides.
    """

    needs_metric = False
    # Its trial is the search.
    replaces_waiting = False

    def __init__(self, max_length: int | None = None) -> None:
        super().__init__(max_trials=1, max_concurrent_trials=1, max_length=max_length)

    def trial_exited(self, draw: Draw, request_id: str) -> list[Action]:
        return []
