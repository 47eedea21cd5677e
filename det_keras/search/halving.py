"""Asynchronous successive halving, in one bracket or in several brackets at the same time (adaptive)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from det_keras.search.base import Action, Create, Draw, ExitedReason, FilledRung, SearchMethod, WorkDone
from det_keras.search.bracket import Bracket


class HalvingSearch(SearchMethod):
    """Spends most of the training on the trials that do best.

    Args:
        brackets: of one kind, tallest first; they share only the stream of random numbers.
        time_metric: the reported metric for how long a trial has trained; None if trials are given lengths.
    """

    compares_trials = True

    def __init__(self, brackets: Sequence[Bracket], time_metric: str | None) -> None:
        self._brackets = brackets
        self._bracket_of: dict[str, Bracket] = {}
        self.time_metric = time_metric
        self.gives_lengths = time_metric is None

    def initial(self, draw: Draw) -> list[Action]:
        return [
            action for bracket in self._brackets for action in self._adopted(bracket, bracket.initial(draw))
        ]

    def validation_completed(
        self, draw: Draw, request_id: str, metric: float, metrics: Mapping[str, Any]
    ) -> list[Action]:
        bracket = self._bracket_of[request_id]
        time = 0 if self.time_metric is None else int(metrics[self.time_metric])
        return self._adopted(bracket, bracket.completed(draw, request_id, metric, time))

    def trial_exited_early(self, draw: Draw, request_id: str, reason: ExitedReason) -> list[Action]:
        bracket = self._bracket_of[request_id]
        return self._adopted(bracket, bracket.exited_early(draw, request_id, reason))

    def trial_exited(self, draw: Draw, request_id: str) -> list[Action]:
        bracket = self._bracket_of[request_id]
        return self._adopted(bracket, bracket.exited(draw, request_id))

    def progress(self, work: WorkDone) -> float:
        return sum(bracket.progress() for bracket in self._brackets) / len(self._brackets)

    def planned_trials(self) -> int:
        return sum(bracket.plan.trials for bracket in self._brackets)

    def planned_endings(self) -> Mapping[int, int]:
        endings: dict[int, int] = {}
        for bracket in self._brackets:
            for length, count in bracket.plan.endings().items():
                endings[length] = endings.get(length, 0) + count
        return dict(sorted(endings.items()))

    def compared_lengths(self) -> Sequence[int]:
        return sorted({length for bracket in self._brackets for length in bracket.plan.lengths})

    @property
    def full_length(self) -> int | None:
        return max(self.compared_lengths()) if self.gives_lengths else None

    def extended(self, draw: Draw, request_id: str) -> list[Action] | None:
        actions = self.trial_exited_early(draw, request_id, ExitedReason.USER_REQUESTED_STOP)
        return [*actions, *self.trial_exited(draw, request_id)]

    def withdrawn(self, draw: Draw, request_id: str) -> list[Action]:
        bracket = self._bracket_of.pop(request_id)
        return self._adopted(bracket, bracket.withdrawn(draw, request_id))

    def filled_rungs(self) -> Sequence[FilledRung]:
        return [
            rung for number, bracket in enumerate(self._brackets) for rung in bracket.filled_rungs(number)
        ]

    def snapshot(self) -> dict[str, Any]:
        return {"brackets": [bracket.snapshot() for bracket in self._brackets]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._bracket_of = {}
        for bracket, saved in zip(self._brackets, state["brackets"], strict=True):
            bracket.restore(saved)
            self._bracket_of.update(dict.fromkeys(bracket.request_ids(), bracket))

    def _adopted(self, bracket: Bracket, actions: list[Action]) -> list[Action]:
        """Record the bracket of new trials."""
        for action in actions:
            if isinstance(action, Create):
                self._bracket_of[action.request_id] = bracket
        return actions
