"""A bracket with its rungs and trials, and the contract of its kinds.

A result is compared at once with the results that its rung has already; it does not wait until the rung is full.
"""

from __future__ import annotations

import abc
import bisect
from collections.abc import Mapping
from typing import Any

from det_keras.search.base import (
    Action,
    Close,
    Draw,
    ExitedReason,
    FilledRung,
    Stop,
    ValidateAfter,
    refused_too_often,
)
from det_keras.search.rungs import BracketPlan


class Rung:
    """The results at one length, best first."""

    def __init__(self) -> None:
        # Two lists, so that the bisection compares plain numbers.
        self._metrics: list[float] = []
        self._ids: list[str] = []

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> str:
        return self._ids[index]

    def insert_before_equal(self, metric: float, request_id: str) -> int:
        """Add a result and return its rank; it ranks before equal results."""
        return self._insert(bisect.bisect_left(self._metrics, metric), metric, request_id)

    def insert_after_equal(self, metric: float, request_id: str) -> int:
        """Add a result and return its rank; it ranks after equal results."""
        return self._insert(bisect.bisect_right(self._metrics, metric), metric, request_id)

    def remove(self, request_id: str) -> None:
        """Remove a trial's result, if there is one."""
        if request_id in self._ids:
            index = self._ids.index(request_id)
            del self._metrics[index], self._ids[index]

    def results(self) -> tuple[tuple[str, float], ...]:
        """Return (request id, metric) of the trials, best first."""
        return tuple(zip(self._ids, self._metrics, strict=True))

    def ids(self) -> tuple[str, ...]:
        """Return the trials, best first."""
        return tuple(self._ids)

    def snapshot(self) -> list[Any]:
        """Return the results as plain values for JSON."""
        return [list(self._metrics), list(self._ids)]

    def restore(self, state: list[Any]) -> None:
        """Restore the state that `snapshot` returned."""
        self._metrics, self._ids = list(state[0]), list(state[1])

    def _insert(self, index: int, metric: float, request_id: str) -> int:
        self._metrics.insert(index, metric)
        self._ids.insert(index, request_id)
        return index


class Bracket(abc.ABC):
    """A set of rungs and its trials.

    Args:
        plan: the number of trials, and the lengths at which they are compared.
        gives_lengths: whether trials are given lengths; otherwise they train until they are stopped.
    """

    def __init__(self, plan: BracketPlan, *, gives_lengths: bool) -> None:
        self.plan = plan
        self._gives_lengths = gives_lengths
        self._rungs = [Rung() for _ in plan.lengths]
        self._rung_of: dict[str, int] = {}
        self._created = 0
        self._invalid = 0
        self._exited = 0
        # The trials that get no further length, even if they have not ended yet.
        self._closed: set[str] = set()

    def initial(self, draw: Draw) -> list[Action]:
        """Return the first actions."""
        return [action for _ in range(self.plan.first_trials) for action in self._create(draw)]

    @abc.abstractmethod
    def completed(self, draw: Draw, request_id: str, metric: float, time: int) -> list[Action]:
        """Return the actions after a validation of a trial.

        Args:
            draw: creates new trials.
            request_id: the trial.
            metric: finite, smaller is better.
            time: how long it has trained; not used if the bracket gives lengths.
        """

    def exited_early(self, draw: Draw, request_id: str, reason: ExitedReason) -> list[Action]:
        """Return the actions after a trial ended early.

        Args:
            draw: creates new trials.
            request_id: the trial.
            reason: why it ended.
        """
        if reason.is_invalid_hp:
            return self._replace(draw, request_id)
        return self._failed(draw, request_id)

    def exited(self, draw: Draw, request_id: str) -> list[Action]:
        """Return the actions after the end of a trial."""
        self._exited += 1
        return []

    def withdrawn(self, draw: Draw, request_id: str) -> list[Action]:
        """Forget a trial that has not begun, and create another one in its place."""
        del self._rung_of[request_id]
        self._created -= 1
        return self._create(draw)

    def progress(self) -> float:
        """Return the progress: mainly the number of trials at the first rung, which is most of the work."""
        trials, reached = self.plan.trials, len(self._rungs[0])
        done = reached / (1.2 * trials)
        return done if reached < trials else max(done, (self._exited - self._invalid) / trials)

    def request_ids(self) -> list[str]:
        """Return all trials of this bracket, in the order of their creation."""
        return list(self._rung_of)

    def filled_rungs(self, number: int) -> list[FilledRung]:
        """Return the results at all rungs; `number` is the number of this bracket."""
        return [
            FilledRung(number, length, self.plan.trials, rung.results())
            for length, rung in zip(self.plan.lengths, self._rungs, strict=True)
        ]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain values for JSON."""
        return {
            "rungs": [rung.snapshot() for rung in self._rungs],
            "rung_of": dict(self._rung_of),
            "created": self._created,
            "invalid": self._invalid,
            "exited": self._exited,
            "closed": sorted(self._closed),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `snapshot` returned."""
        for rung, saved in zip(self._rungs, state["rungs"], strict=True):
            rung.restore(saved)
        self._rung_of = dict(state["rung_of"])
        self._created, self._invalid, self._exited = state["created"], state["invalid"], state["exited"]
        self._closed = set(state["closed"])

    @abc.abstractmethod
    def _failed(self, draw: Draw, request_id: str) -> list[Action]:
        """Return the actions after a failure or a cancellation, which counts as a trial."""

    def _replace(self, draw: Draw, request_id: str) -> list[Action]:
        """Replace a trial whose hyperparameters were refused by a new trial."""
        refused = refused_too_often(self._invalid, self.plan.trials)
        self._invalid += 1
        for rung in self._rungs[: self._rung_of[request_id] + 1]:
            rung.remove(request_id)
        following = self._create(draw) if refused is None else [refused]
        return [*self._close(request_id), *following]

    def _close(self, request_id: str) -> list[Action]:
        """End a trial, unless this was done before."""
        if request_id in self._closed:
            return []
        self._closed.add(request_id)
        return [Close(request_id) if self._gives_lengths else Stop(request_id)]

    def _next_trial(self, draw: Draw) -> list[Action]:
        """Create another trial if the number of trials is not reached."""
        return self._create(draw) if self._created - self._invalid < self.plan.trials else []

    def _create(self, draw: Draw) -> list[Action]:
        create = draw.create()
        self._created += 1
        self._rung_of[create.request_id] = 0
        if not self._gives_lengths:
            return [create]
        return [create, ValidateAfter(create.request_id, self.plan.lengths[0])]
