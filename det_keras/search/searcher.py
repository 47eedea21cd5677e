"""The searcher of one experiment: a search method, and the state of its trials.

The method contains the algorithm. The searcher tracks which trials were requested, created and ended, and how, which
length each has to reach, and when the search is complete. Its whole state is one JSON value.
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
    ValidateAfter,
    WorkDone,
)

_SETS = ("requested", "created", "closed", "exited", "failed", "cancelled", "invalid", "reopened")


@dataclass(frozen=True)
class Operation:
    """The length that a trial has to reach.

    Attributes:
        length: absolute, in the unit of ``searcher.max_length``.
        completed: the trial reported that it reached the length, and the search has given no longer length since.
    """

    length: int
    completed: bool = False


class Searcher:
    """Passes events to a search method and tracks its trials.

    Args:
        method: the algorithm.
        space: the space of hyperparameters.
        seed: the experiment's seed.
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
        # The trials of `_progress` that have not ended: few of many, if a search runs some at a time.
        self._running: set[str] = set()
        self._is_shut_down = False

    def initial(self) -> list[Action]:
        """Start the search."""
        return self._account(self.method.initial(self._draw))

    def trial_created(self, request_id: str) -> list[Action]:
        """Record that a requested trial was created; return the actions that follow."""
        return self.trials_created([request_id])

    def trials_created(self, request_ids: Sequence[str]) -> list[Action]:
        """Record that requested trials were created; return the actions that follow."""
        self._sets["created"].update(request_ids)
        return self._account([])

    def validation_reported(self, request_id: str, metric: float, metrics: Mapping[str, Any]) -> list[Action]:
        """Record a validation; return the actions that follow.

        A method that gives lengths is called only for validations at its lengths, by `operation_completed`.

        Args:
            request_id: the trial.
            metric: the searcher's metric.
            metrics: all reported metrics.
        """
        is_over = request_id in self._sets["exited"] or request_id in self._sets["reopened"]
        if self.method.gives_lengths or is_over:
            return []
        return self._validated(request_id, metric, metrics)

    def operation_completed(
        self, request_id: str, length: int, metric: float, metrics: Mapping[str, Any]
    ) -> list[Action]:
        """Record that a trial reached its length; return the actions that follow.

        Args:
            request_id: the trial.
            length: in the unit of ``searcher.max_length``.
            metric: the searcher's metric at that length.
            metrics: all metrics of the same validation.

        Raises:
            ValueError: the trial was not given this length, or reported it complete before.
        """
        operation = self.open_operation(request_id, length)
        self._operations[request_id] = replace(operation, completed=True)
        return self._validated(request_id, metric, metrics)

    def open_operation(self, request_id: str, length: int) -> Operation:
        """Return the operation that a trial completes by reaching `length`.

        Raises:
            ValueError: the trial was not given this length, or reported it complete before.
        """
        operation = self.operation(request_id)
        if operation is None:
            raise ValueError("The search gave this trial no length.")
        if operation.length != length:
            raise ValueError(f"The current length is {operation.length}, received {length}.")
        if operation.completed:
            raise ValueError(f"The length {length} was reported complete before.")
        return operation

    def progress_reported(self, request_id: str, progress: float) -> None:
        """Record the progress of a trial, in the unit of ``searcher.max_length``; without one, 0 to 1."""
        if math.isfinite(progress):
            self._progress[request_id] = max(0.0, progress)
            if not self.is_over(request_id):
                self._running.add(request_id)

    def trial_exited_early(self, request_id: str, reason: ExitedReason) -> list[Action]:
        """Record that a trial ended early, and return the actions that follow; a second report is ignored."""
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
        """Record that a trial ended, and return the actions that follow; a second report is ignored."""
        if request_id in self._sets["exited"]:
            return []
        self._sets["exited"].add(request_id)
        self._sets["closed"].add(request_id)
        self._running.discard(request_id)
        if request_id in self._sets["reopened"]:
            return self._account([])
        return self._account(self.method.trial_exited(self._draw, request_id))

    def reopen(self, request_ids: Sequence[str]) -> None:
        """Continue an ended search, for trials that run again.

        The method has already used their results and receives no more of their events. The search waits for their ends.
        """
        for name in ("exited", "failed", "cancelled", "invalid"):
            self._sets[name] -= set(request_ids)
        self._sets["reopened"] |= set(request_ids)
        self._running |= self._progress.keys() & request_ids
        self._is_shut_down = False

    def gave_up(self, request_id: str) -> list[Action]:
        """Record that a trial's script ended before the trial's length; return the actions that follow."""
        return self._account(
            self.method.trial_exited_early(self._draw, request_id, ExitedReason.USER_REQUESTED_STOP)
        )

    def operation(self, request_id: str) -> Operation | None:
        """Return the length that a trial has to reach; None if the search gives no lengths."""
        return self._operations.get(request_id)

    def has_work(self, request_id: str) -> bool:
        """Return whether a trial has a length to reach, or the search gives no lengths."""
        operation = self.operation(request_id)
        return operation is None or not operation.completed

    def is_closed(self, request_id: str) -> bool:
        """Return whether a trial gets no further length."""
        return request_id in self._sets["closed"]

    def is_over(self, request_id: str) -> bool:
        """Return whether the end of a trial was recorded."""
        return request_id in self._sets["exited"]

    def progress(self) -> float:
        """Return the progress of the search, 0 to 1."""
        exited, invalid = self._sets["exited"], self._sets["invalid"]
        lengths = [self._progress[trial] for trial in self._running if trial not in invalid]
        value = self.method.progress(WorkDone(len(exited), len(exited & invalid), lengths))
        return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as plain values for JSON."""
        return {
            "method": self.method.snapshot(),
            "stream": self._stream.getstate(),
            "sets": {name: sorted(members) for name, members in self._sets.items()},
            "operations": {trial: [op.length, op.completed] for trial, op in self._operations.items()},
            "progress": dict(self._progress),
            "is_shut_down": self._is_shut_down,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `snapshot` returned."""
        self.method.restore(state["method"])
        self._stream.setstate(state["stream"])
        self._sets = {name: set(state["sets"].get(name, ())) for name in _SETS}
        self._operations = {
            trial: Operation(length, done) for trial, (length, done) in state["operations"].items()
        }
        self._progress = dict(state["progress"])
        self._running = self._progress.keys() - self._sets["exited"]
        self._is_shut_down = bool(state["is_shut_down"])

    def _validated(self, request_id: str, metric: float, metrics: Mapping[str, Any]) -> list[Action]:
        if request_id in self._sets["reopened"]:
            return []
        signed = metric if self._smaller_is_better else -metric
        # A metric that diverged in either direction ranks last. NaN would break the order of a rung.
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
