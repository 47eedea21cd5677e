"""Grid search: every point of a grid over the space, each trained fully."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from det_keras.config import Space
from det_keras.search.base import Action, Close, Draw, SearchMethod, ValidateAfter, WorkDone, at_once


class GridSearch(SearchMethod):
    """Trains every point, at most `max_concurrent_trials` at a time, from the end of the list.

    Args:
        points: in the order of the grid; the first name varies slowest.
        max_concurrent_trials: maximum number of running trials; 0 for `MOST_AT_ONCE`.
        max_length: the length of each trial, in the unit of the config; None if the scripts decide.
    """

    def __init__(
        self,
        points: Sequence[Mapping[str, Any]],
        max_concurrent_trials: int = 0,
        max_length: int | None = None,
    ) -> None:
        self._points = points
        self._max_concurrent_trials = max_concurrent_trials
        self._max_length = max_length
        self.gives_lengths = max_length is not None
        # Points of which it is known what became of them; `_left_out` of them are trials of no search.
        self._created = 0
        self._left_out = 0
        # Whether the user has left out a part of the space.
        self._is_narrowed = False

    def initial(self, draw: Draw) -> list[Action]:
        count = at_once(len(self._points), self._max_concurrent_trials)
        return [action for _ in range(count) for action in self._next_trial(draw)]

    def trial_exited(self, draw: Draw, request_id: str) -> list[Action]:
        return self._next_trial(draw) if self._created < len(self._points) else []

    def withdrawn(self, draw: Draw, request_id: str) -> list[Action]:
        self._left_out += 1
        return self._next_trial(draw)

    def progress(self, work: WorkDone) -> float:
        full = float(self._max_length or 1)
        done = math.fsum(min(length, full) for length in work.lengths)
        return (full * work.ended + done) / (full * max(len(self._points) - self._left_out, 1))

    @property
    def full_length(self) -> int | None:
        return self._max_length

    def planned_trials(self) -> int:
        return len(self._points)

    def snapshot(self) -> dict[str, Any]:
        return {"created": self._created, "left_out": self._left_out, "is_narrowed": self._is_narrowed}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._created = state["created"]
        self._left_out = state.get("left_out", 0)
        self._is_narrowed = state.get("is_narrowed", False)

    def narrowed(self, former: Space, space: Space) -> None:
        self._is_narrowed = True

    def _next_trial(self, draw: Draw) -> list[Action]:
        """Create the next trial; none if no point is left."""
        while self._created < len(self._points):
            self._created += 1
            point = self._points[-self._created]
            if self._is_narrowed and not draw.space.contains(point):
                self._left_out += 1
                continue
            create = draw.create(point)
            if self._max_length is None:
                return [create]
            return [create, ValidateAfter(create.request_id, self._max_length), Close(create.request_id)]
        return []
