"""The searcher of one experiment: a search method, and the state of its trials.

The method contains the algorithm. The searcher tracks which trials were requested, created and ended, and how, which
length each has to reach, and when the search is complete. Its whole state is one JSON value.
"""

from __future__ import annotations

import hashlib
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

_SETS = (
    "requested",
    "created",
    "closed",
    "exited",
    "failed",
    "cancelled",
    "invalid",
    "reopened",
    "added",
    "withdrawn",
)


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
        self._seed = seed
        self._draw = Draw(space, self._stream)
        # What the user left of the space, step by step.
        self.narrowings: list[dict[str, list[Any]]] = []
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
        if self.method.gives_lengths or request_id in self._sets["exited"]:
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
        if self._is_of_user(request_id):
            return []
        return self._account(self.method.trial_exited_early(self._draw, request_id, reason))

    def trial_exited(self, request_id: str) -> list[Action]:
        """Record that a trial ended, and return the actions that follow; a second report is ignored."""
        if request_id in self._sets["exited"]:
            return []
        self._sets["exited"].add(request_id)
        self._sets["closed"].add(request_id)
        self._running.discard(request_id)
        if self._is_of_user(request_id):
            if request_id in self._sets["added"]:
                self.method.left(request_id)
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

    def add_trial(self, hparams: Mapping[str, Any]) -> list[Action]:
        """Add a trial of the user, which is trained fully, whatever becomes of the others.

        The method decides nothing about it, and the other trials are those that they would have been without it.

        Args:
            hparams: its hyperparameters, nested as in the config.
        """
        number = len(self._sets["added"])
        own = hashlib.sha256(f"{self._seed} added {number}".encode()).digest()
        draw = Draw(self._draw.space, RandomStream(int.from_bytes(own[:4], "little")))
        create = draw.create(hparams)
        self._sets["added"].add(create.request_id)
        self.method.adopted(self._draw, create)
        length = self.method.full_length
        if length is None:
            return self._account([create])
        return self._account([create, ValidateAfter(create.request_id, length), Close(create.request_id)])

    def extend(self, request_id: str, length: int) -> list[Action]:
        """Let a trial train to a longer length than its search gave it, and no further; return what follows.

        Args:
            request_id: a trial that has not ended.
            length: absolute, in the unit of ``searcher.max_length``.

        Raises:
            ValueError: the search gives no lengths, or the trial has a longer one.
        """
        self.check_extension(request_id, length)
        following: Sequence[Action] = ()
        if not self._is_of_user(request_id):
            decided = self.method.extended(self._draw, request_id)
            if decided is not None:
                self._sets["reopened"].add(request_id)
                following = [one for one in decided if getattr(one, "request_id", "") != request_id]
        closing = [] if self.is_closed(request_id) else [Close(request_id)]
        return self._account([ValidateAfter(request_id, length), *closing, *following])

    def check_extension(self, request_id: str, length: int) -> None:
        """Check that `extend` is possible.

        Raises:
            ValueError: the search gives no lengths, or the trial has a longer one.
        """
        operation = self.operation(request_id)
        if operation is None:
            raise ValueError(
                "The search gives its trials no lengths: their script decides how long they train."
            )
        if length <= operation.length:
            raise ValueError(f"The trial trains to {operation.length} already, received {length}.")

    def narrow(self, wanted: Mapping[str, Sequence[Any]], withdrawn: Sequence[str] = ()) -> list[Action]:
        """Draw further trials from a part of the space, and others in place of those that are withdrawn.

        Args:
            wanted: by dotted name, the lowest and the highest value of a range, or the values of a list.
            withdrawn: trials for which `may_withdraw` is true, and which have not begun. They count for nothing.

        Raises:
            ConfigError: a name or a value is unknown, or nothing is left.
        """
        former = self._draw.space
        self._draw.space = former.narrowed(wanted)
        self.method.narrowed(former, self._draw.space)
        self.narrowings.append({name: list(values) for name, values in wanted.items()})
        actions: list[Action] = []
        for request_id in withdrawn:
            for members in self._sets.values():
                members.discard(request_id)
            self._sets["withdrawn"].add(request_id)
            self._operations.pop(request_id, None)
            actions += self.method.withdrawn(self._draw, request_id)
        return self._account(actions)

    def may_withdraw(self, request_id: str) -> bool:
        """Return whether the method would create another trial in place of this one, if it has not begun."""
        return self.method.replaces_waiting and not self._is_of_user(request_id)

    def is_withdrawn(self, request_id: str) -> bool:
        """Return whether a trial was withdrawn before it began."""
        return request_id in self._sets["withdrawn"]

    @property
    def space(self) -> Space:
        """The space from which further trials are drawn."""
        return self._draw.space

    def gave_up(self, request_id: str) -> list[Action]:
        """Record that a trial's script ended before the trial's length; return the actions that follow."""
        if self._is_of_user(request_id):
            return []
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
        return request_id in self._sets["exited"] or self.is_withdrawn(request_id)

    def progress(self) -> float:
        """Return the progress of the search, 0 to 1."""
        added = self._sets["added"]
        exited, invalid = self._sets["exited"], self._sets["invalid"]
        lengths = [
            self._progress[trial] for trial in self._running if trial not in invalid and trial not in added
        ]
        refused = exited & invalid
        work = WorkDone(len(exited) - len(exited & added), len(refused) - len(refused & added), lengths)
        value = self.method.progress(work)
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
            "narrowings": self.narrowings,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `snapshot` returned."""
        self.narrowings = list(state.get("narrowings", ()))
        for wanted in self.narrowings:
            self._draw.space = self._draw.space.narrowed(wanted)
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
        if request_id in self._sets["added"]:
            self.method.learned(request_id, signed)
            return []
        return self._account(self.method.validation_completed(self._draw, request_id, signed, metrics))

    def _is_of_user(self, request_id: str) -> bool:
        """Whether the method decides nothing about a trial (any more)."""
        return request_id in self._sets["reopened"] or request_id in self._sets["added"]

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
