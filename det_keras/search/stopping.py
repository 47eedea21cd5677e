"""Asynchronous halving with stopping: a trial trains until it is stopped at a rung, and is never resumed."""

from __future__ import annotations

from det_keras.search.base import WORST, Action, Draw, ValidateAfter
from det_keras.search.bracket import Bracket


class StoppingBracket(Bracket):
    """Stops a trial at the first rung where it is not among the best 1/divisor of the results so far.

    The first trial at a rung always passes. A new result ranks before equal results. A trial that has passed a rung is
    not stopped there later.
    """

    def completed(self, draw: Draw, request_id: str, metric: float, time: int) -> list[Action]:
        if request_id in self._closed:
            return []
        if self._gives_lengths:
            return self._reached(draw, request_id, metric)
        for index in range(self._rung_of[request_id], len(self._rungs)):
            self._rung_of[request_id] = index
            if time < self.plan.lengths[index]:
                return []
            # If validations are sparse, a validation counts at several rungs.
            if not self._passes(index, request_id, metric):
                break
        return [*self._close(request_id), *self._next_trial(draw)]

    def exited(self, draw: Draw, request_id: str) -> list[Action]:
        super().exited(draw, request_id)
        if request_id in self._closed:
            return []
        # The script ended before the last rung: a new trial may take its place.
        self._closed.add(request_id)
        return self._next_trial(draw)

    def _failed(self, draw: Draw, request_id: str) -> list[Action]:
        if request_id in self._closed:
            return []
        self._closed.add(request_id)
        self._rungs[self._rung_of[request_id]].insert_before_equal(WORST, request_id)
        return self._next_trial(draw)

    def _reached(self, draw: Draw, request_id: str, metric: float) -> list[Action]:
        index = self._rung_of[request_id]
        if not self._passes(index, request_id, metric):
            return [*self._close(request_id), *self._next_trial(draw)]
        self._rung_of[request_id] = index + 1
        return [ValidateAfter(request_id, self.plan.lengths[index + 1])]

    def _passes(self, index: int, request_id: str, metric: float) -> bool:
        rung = self._rungs[index]
        rank = rung.insert_before_equal(metric, request_id)
        is_top = index == len(self._rungs) - 1
        return not is_top and rank < max(int(len(rung) / self.plan.divisor), 1)
