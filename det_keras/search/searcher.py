"""The searcher of one experiment: a search method, and the account of its trials.

The method knows its algorithm; the searcher knows which trials were asked for, which exist, which are over
and how, what length each has to reach, and when all of it is done. Its whole state is one JSON value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from det_keras.config import RandomStream, Space
from det_keras.search.base import (
    WORST,
    Action,
    Close,
    Create,
    Draw,
    ExitedReason,
    SearchMethod,
    Shutdown,
    TrialProgress,
    ValidateAfter,
)

__all__ = ["Operation", "Searcher"]

_SETS = ("requested", "created", "closed", "exited", "failed", "cancelled", "invalid", "reopened")


@dataclass(frozen=True)
class Operation:
    """The length that a trial has to reach.

    Attributes:
        length: absolute, in the unit of ``searcher.max_length``.
        completed: the trial reported that it reached it, and no longer one was given.
    """

    length: int
    completed: bool = False


class Searcher:
    """Feeds events to a search method and keeps account.

    Args:
        method: the algorithm.
        space: of hyperparameters.
        seed: of the experiment.
        smaller_is_better: how the searcher's metric compares.
    """

    def __init__(
        self, method: SearchMethod, space: Space, seed: int, *, smaller_is_better: bool = True
    ) -> None:
        self.method = method
        self._smaller_is_better = smaller_is_better
        self._stream = RandomStream(seed)
        self._draw = Draw(space, self._stream)
        self._sets: dict[str, set[str]] = {name: set() for name in _SETS}
        self._operations: dict[str, Operation] = {}
        self._progress: dict[str, float] = {}
        self._is_shut_down = False

    def initial(self) -> list[Action]:
        """Start the search."""
        return self._account(self.method.initial(self._draw))

    def trial_created(self, request_id: str) -> list[Action]:
        """Tell that a requested trial exists."""
        self._sets["created"].add(request_id)
        return self._account(self.method.trial_created(self._draw, request_id))

    def validation_reported(self, request_id: str, metric: float, metrics: Mapping[str, Any]) -> list[Action]:
        """Tell of any validation; a method that gives lengths hears of those at its lengths only."""
        if self.method.gives_lengths or request_id in self._sets["exited"] | self._sets["reopened"]:
            return []
        return self._validated(request_id, metric, metrics)

    def operation_completed(
        self, request_id: str, length: int, metric: float, metrics: Mapping[str, Any]
    ) -> list[Action]:
        """Tell that a trial reached the length that it was given.

        Raises:
            ValueError: it has no such operation, or reported it complete before.
        """
        operation = self.operation(request_id)
        if operation is None:
            raise ValueError("The search gave this trial no length.")
        if operation.length != length:
            raise ValueError(f"The current length is {operation.length}, received {length}.")
        if operation.completed:
            raise ValueError(f"The length {length} was reported complete before.")
        self._operations[request_id] = replace(operation, completed=True)
        return self._validated(request_id, metric, metrics)

    def progress_reported(self, request_id: str, progress: float) -> None:
        """Tell how far a trial is, in searcher units or as a fraction."""
        if math.isfinite(progress):
            self._progress[request_id] = max(0.0, progress)

    def trial_exited_early(self, request_id: str, reason: ExitedReason) -> list[Action]:
        """Tell that a trial ended before its time; a second report for it is ignored."""
        if any(request_id in self._sets[name] for name in ("failed", "cancelled", "invalid", "exited")):
            return []
        if reason.is_invalid_hp:
            self._sets["invalid"].add(request_id)
        elif reason is ExitedReason.USER_CANCELED:
            self._sets["cancelled"].add(request_id)
        elif reason is ExitedReason.ERRORED:
            self._sets["failed"].add(request_id)
        if request_id in self._sets["reopened"]:
            return []
        return self._account(self.method.trial_exited_early(self._draw, request_id, reason))

    def trial_exited(self, request_id: str) -> list[Action]:
        """Tell that a trial is over; a second report for it is ignored."""
        if request_id in self._sets["exited"]:
            return []
        self._sets["exited"].add(request_id)
        self._sets["closed"].add(request_id)
        if request_id in self._sets["reopened"]:
            return self._account([])
        return self._account(self.method.trial_exited(self._draw, request_id))

    def reopen(self, request_ids: Sequence[str]) -> None:
        """Go on with a search that is over, while these of its trials run once more.

        The method has drawn its conclusions from them and hears no more of them; the search waits for their ends.
        """
        for name in ("exited", "failed", "cancelled", "invalid"):
            self._sets[name] -= set(request_ids)
        self._sets["reopened"] |= set(request_ids)
        self._is_shut_down = False

    def gave_up(self, request_id: str) -> list[Action]:
        """Tell that a trial whose script has come to its end cannot reach the length that it was given."""
        return self._account(
            self.method.trial_exited_early(self._draw, request_id, ExitedReason.USER_REQUESTED_STOP)
        )

    def operation(self, request_id: str) -> Operation | None:
        """Return what a trial has to reach, None where the search gives no lengths."""
        return self._operations.get(request_id)

    def has_work(self, request_id: str) -> bool:
        """Tell whether a trial has something to run for."""
        operation = self.operation(request_id)
        return operation is None or not operation.completed

    def is_closed(self, request_id: str) -> bool:
        """Tell whether a trial gets no further work."""
        return request_id in self._sets["closed"]

    def is_over(self, request_id: str) -> bool:
        """Tell whether a trial was reported to be over."""
        return request_id in self._sets["exited"]

    def progress(self) -> float:
        """Return how much of the search is done, 0 to 1."""
        sets = self._sets
        # A closed trial is one that is over: single and random close theirs as soon as they give the length.
        trials = [
            TrialProgress(self._progress.get(one, 0.0), one in sets["exited"], one in sets["invalid"])
            for one in sets["created"]
        ]
        value = self.method.progress(trials)
        return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as plain values for JSON."""
        return {
            "method": self.method.snapshot(),
            "stream": self._stream.getstate(),
            "sets": {name: sorted(members) for name, members in self._sets.items()},
            "operations": {one: [op.length, op.completed] for one, op in self._operations.items()},
            "progress": dict(self._progress),
            "is_shut_down": self._is_shut_down,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where the searcher was whose `snapshot` returned `state`."""
        self.method.restore(state["method"])
        self._stream.setstate(state["stream"])
        self._sets = {name: set(state["sets"].get(name, ())) for name in _SETS}
        self._operations = {
            one: Operation(length, done) for one, (length, done) in state["operations"].items()
        }
        self._progress = dict(state["progress"])
        self._is_shut_down = bool(state["is_shut_down"])

    def _validated(self, request_id: str, metric: float, metrics: Mapping[str, Any]) -> list[Action]:
        if request_id in self._sets["reopened"]:
            return []
        signed = metric if self._smaller_is_better else -metric
        # One that diverged, to whichever side, ranks last; as NaN it would spoil every order that it enters.
        signed = signed if math.isfinite(signed) else WORST
        return self._account(self.method.validation_completed(self._draw, request_id, signed, metrics))

    def _account(self, actions: Sequence[Action]) -> list[Action]:
        kept: list[Action] = []
        for action in actions:
            if isinstance(action, Create):
                self._sets["requested"].add(action.request_id)
            elif isinstance(action, ValidateAfter):
                self._operations[action.request_id] = Operation(action.length)
            elif isinstance(action, Close):
                self._sets["closed"].add(action.request_id)
            elif isinstance(action, Shutdown):
                if self._is_shut_down:
                    continue
                self._is_shut_down = True
            kept.append(action)
        return [*kept, *self._shutdown_if_done()]

    def _shutdown_if_done(self) -> list[Action]:
        requested = self._sets["requested"]
        if self._is_shut_down or len(requested) != len(self._sets["exited"]):
            return []
        self._is_shut_down = True
        return [
            Shutdown(
                cancel=bool(requested) and requested <= self._sets["cancelled"],
                failure=bool(requested) and requested <= self._sets["failed"],
            )
        ]
