"""Asynchronous halving with promotion: every trial pauses at each rung until it is among the best.

Each report starts one new piece of work, a promotion if one is due and a new trial otherwise. The number of running
trials therefore stays the same until all trials have been created. A trial that waits for its promotion uses no slot.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_keras.search.base import WORST, Action, Draw, ValidateAfter
from det_keras.search.bracket import Bracket
from det_keras.search.rungs import BracketPlan


class PromotionBracket(Bracket):
    """Promotes a trial once it is in the top 1/divisor of the trials that reached its rung.

    Among equal results the older one is first. A promotion is final. Other trials may still be promoted later, after
    enough worse results.
    """

    def __init__(self, plan: BracketPlan, *, gives_lengths: bool = True) -> None:
        super().__init__(plan, gives_lengths=gives_lengths)
        self._promoted: list[set[str]] = [set() for _ in plan.lengths]
        # The trials that are training for a rung.
        self._outstanding: list[set[str]] = [set() for _ in plan.lengths]
        # The trials whose process cannot continue.
        self._gone: set[str] = set()
        # All trials below this rung are closed, so that full rungs are not searched again.
        self._first_open = 0

    def completed(self, draw: Draw, request_id: str, metric: float, time: int) -> list[Action]:
        if request_id not in self._outstanding[self._rung_of[request_id]]:
            return []
        return self._recorded(draw, request_id, metric)

    def withdrawn(self, draw: Draw, request_id: str) -> list[Action]:
        self._outstanding[0].discard(request_id)
        return super().withdrawn(draw, request_id)

    def snapshot(self) -> dict[str, Any]:
        return {
            **super().snapshot(),
            "promoted": [sorted(members) for members in self._promoted],
            "outstanding": [sorted(members) for members in self._outstanding],
            "gone": sorted(self._gone),
            "first_open": self._first_open,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._promoted = [set(members) for members in state["promoted"]]
        self._outstanding = [set(members) for members in state["outstanding"]]
        self._gone = set(state["gone"])
        self._first_open = state["first_open"]

    def _create(self, draw: Draw) -> list[Action]:
        actions = super()._create(draw)
        self._outstanding[0].add(next(reversed(self._rung_of)))
        return actions

    def _failed(self, draw: Draw, request_id: str) -> list[Action]:
        self._gone.add(request_id)
        self._closed.add(request_id)
        if request_id not in self._outstanding[self._rung_of[request_id]]:
            # It was paused: its results stay, and no work was lost.
            return []
        return self._recorded(draw, request_id, WORST)

    def _replace(self, draw: Draw, request_id: str) -> list[Action]:
        self._gone.add(request_id)
        index = self._rung_of[request_id]
        self._outstanding[index].discard(request_id)
        for promoted in self._promoted[: index + 1]:
            promoted.discard(request_id)
        self._first_open = 0
        return super()._replace(draw, request_id)

    def _recorded(self, draw: Draw, request_id: str, metric: float) -> list[Action]:
        """Enter a result and return the actions that follow from it."""
        actions: list[Action] = []
        promoted = self._enter(request_id, metric, actions)
        while promoted is not None and self._is_gone(promoted):
            # As if it had trained there and reported the worst result.
            promoted = self._enter(promoted, WORST, actions)
        if promoted is not None:
            actions.append(ValidateAfter(promoted, self.plan.lengths[self._rung_of[promoted]]))
        else:
            actions += self._next_trial(draw)
        if len(self._rungs[0]) >= self.plan.trials:
            actions += self._close_finished_rungs()
        return actions

    def _enter(self, request_id: str, metric: float, actions: list[Action]) -> str | None:
        """Record a result at a trial's rung; return the trial that is promoted from this rung."""
        index = self._rung_of[request_id]
        rung = self._rungs[index]
        self._outstanding[index].discard(request_id)
        before = int(len(rung) / self.plan.divisor)
        rank = rung.insert_after_equal(metric, request_id)
        if index == len(self._rungs) - 1:
            actions += self._close(request_id)
            return None
        places = int(len(rung) / self.plan.divisor)
        if rank < places:
            chosen = request_id
        elif places != before and rung[before] not in self._promoted[index]:
            chosen = rung[before]
        else:
            return None
        self._promoted[index].add(chosen)
        self._rung_of[chosen] = index + 1
        self._outstanding[index + 1].add(chosen)
        return chosen

    def _is_gone(self, request_id: str) -> bool:
        # A closed trial can be promoted after a late refusal has opened its rung again.
        return request_id in self._gone or request_id in self._closed

    def _close_finished_rungs(self) -> list[Action]:
        """End the trials that cannot be promoted any more: no trial is training for their rung or a lower rung."""
        actions: list[Action] = []
        while self._first_open < len(self._rungs) and not self._outstanding[self._first_open]:
            promoted = self._promoted[self._first_open]
            for request_id in self._rungs[self._first_open].ids():
                if request_id not in promoted:
                    actions += self._close(request_id)
            self._first_open += 1
        return actions
