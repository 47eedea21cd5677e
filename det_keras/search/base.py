"""The contract of a search method: events in, actions out, nothing else.

A method is a pure state machine. It has no clock, no files and no generator of its own: whatever it draws
comes from the experiment's stream, through `Draw`, so that the same config, seed and order of events give
the same search. After every event its state can be written down as JSON and read back.
"""

from __future__ import annotations

import abc
import enum
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.config import RandomStream, Space

__all__ = [
    "WORST",
    "Action",
    "Close",
    "Create",
    "Draw",
    "ExitedReason",
    "FilledRung",
    "SearchMethod",
    "Shutdown",
    "Stop",
    "TrialProgress",
    "ValidateAfter",
    "refused_too_often",
]

#: What a trial that failed or diverged ranks as: behind everything that was measured.
WORST = sys.float_info.max

# A space whose points are nearly all refused would otherwise draw for ever.
_REPLACEMENTS_PER_TRIAL = 10


class ExitedReason(str, enum.Enum):
    """Why a trial ended before the search was done with it."""

    ERRORED = "ERRORED"
    USER_CANCELED = "USER_CANCELED"
    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"
    INVALID_HP = "INVALID_HP"
    INIT_INVALID_HP = "INIT_INVALID_HP"

    @property
    def is_invalid_hp(self) -> bool:
        """Whether the script refused its hyperparameters."""
        return self in (ExitedReason.INVALID_HP, ExitedReason.INIT_INVALID_HP)


@dataclass(frozen=True)
class Create:
    """Start a trial.

    Attributes:
        request_id: UUID by which the search names it.
        hparams: its hyperparameters, nested as in the config.
        seed: of everything random in it.
    """

    request_id: str
    hparams: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class ValidateAfter:
    """Train until an absolute length, validate, report; in the unit of ``searcher.max_length``."""

    request_id: str
    length: int


@dataclass(frozen=True)
class Close:
    """No more work for the trial: it ends when it has done what it was given."""

    request_id: str


@dataclass(frozen=True)
class Stop:
    """End the trial at its next safe point; it counts as completed."""

    request_id: str


@dataclass(frozen=True)
class Shutdown:
    """The search is over.

    Attributes:
        cancel: every trial was cancelled by the user.
        failure: every trial failed, or the search itself cannot go on.
        reason: in words, for a failure that the trials do not explain.
    """

    cancel: bool = False
    failure: bool = False
    reason: str = ""


Action = Create | ValidateAfter | Close | Stop | Shutdown


@dataclass(frozen=True)
class TrialProgress:
    """How far one trial is.

    Attributes:
        length: in searcher units where the search gives lengths, otherwise a fraction 0..1.
        is_closed: whether it is over.
        is_invalid: whether it ended because its hyperparameters were no good.
    """

    length: float
    is_closed: bool
    is_invalid: bool


@dataclass(frozen=True)
class FilledRung:
    """How far a rung is.

    Attributes:
        bracket: counted from 0.
        length: at which trials are compared there.
        trials: how many its bracket tries in all.
        results: (request id, metric) of those that reached it, best first.
    """

    bracket: int
    length: int
    trials: int
    results: tuple[tuple[str, float], ...]


class Draw:
    """What a method needs to create trials.

    Args:
        space: of hyperparameters.
        stream: the experiment's only source of randomness.
    """

    def __init__(self, space: Space, stream: RandomStream) -> None:
        self.space = space
        self._stream = stream

    def create(self, hparams: Mapping[str, Any] | None = None) -> Create:
        """Return a new trial at a fresh sample of the space, or at `hparams`."""
        # The order of the draws is part of the format: hyperparameters, then the id, then the seed.
        point = self.space.sample(self._stream) if hparams is None else hparams
        request_id = self._stream.request_id()
        return Create(request_id, point, self._stream.trial_seed())

    def seed(self) -> int:
        """Return the seed of a sampler that proposes the next point."""
        return self._stream.trial_seed()


class SearchMethod(abc.ABC):
    """One algorithm that decides which trials run and for how long.

    Metrics come in so that smaller is always better.
    """

    #: Whether the method decides by comparing trials, so that one that never reports the searcher's metric fails.
    compares_trials = False

    #: Whether a validation without the searcher's metric is an error: in every search, as its best trial is wanted.
    needs_metric = True

    #: Whether it gives trials lengths, and therefore hears only of the validation at each length.
    gives_lengths = False

    #: The reported metric that says how long a trial has trained, for methods that ask for one.
    time_metric: str | None = None

    @abc.abstractmethod
    def initial(self, draw: Draw) -> list[Action]:
        """Return the first actions of the search."""

    def trial_created(self, draw: Draw, request_id: str) -> list[Action]:
        """Return what follows from a trial's being there."""
        return []

    def validation_completed(
        self, draw: Draw, request_id: str, metric: float, metrics: Mapping[str, Any]
    ) -> list[Action]:
        """Return what follows from a validation.

        Args:
            draw: makes new trials.
            request_id: the trial.
            metric: the searcher's metric, smaller is better.
            metrics: everything that was reported, as it was reported.
        """
        return []

    def trial_exited_early(self, draw: Draw, request_id: str, reason: ExitedReason) -> list[Action]:
        """Return what follows from a trial's ending before its time; told at most once a trial."""
        return []

    def trial_exited(self, draw: Draw, request_id: str) -> list[Action]:
        """Return what follows from a trial's end; told once a trial, after any early exit."""
        return []

    @abc.abstractmethod
    def progress(self, trials: Sequence[TrialProgress]) -> float:
        """Return how much of the search is done, 0 to 1; NaN counts as 0."""

    @abc.abstractmethod
    def planned_trials(self) -> int:
        """Return how many trials the search intends to run."""

    def planned_endings(self) -> Mapping[int, int]:
        """Return how many trials would end at which length in a balanced search; empty if all train in full."""
        return {}

    def compared_lengths(self) -> Sequence[int]:
        """Return the lengths at which trials are compared, shortest first; empty if they are not."""
        return ()

    def filled_rungs(self) -> Sequence[FilledRung]:
        """Return who reached which rung; empty if there are none."""
        return ()

    @abc.abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain values for JSON."""

    @abc.abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where the method was whose `snapshot` returned `state`."""


def refused_too_often(replaced: int, max_trials: int) -> Shutdown | None:
    """Return the end of a search whose script keeps refusing its hyperparameters, None while it may go on.

    Args:
        replaced: trials that were made in the place of refused ones.
        max_trials: that count.
    """
    limit = _REPLACEMENTS_PER_TRIAL * max_trials
    if replaced < limit:
        return None
    reason = f"The script refused the hyperparameters of {limit} trials. Narrow the `hyperparameters`."
    return Shutdown(failure=True, reason=reason)
