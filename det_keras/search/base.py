"""The contract of a search method: it receives events and returns actions.

A method is a pure state machine. It has no clock, no files and no random generator of its own: it draws from the
experiment's stream, through `Draw`. The same config, seed and order of events therefore give the same search. After
every event its state can be stored as JSON and restored.
"""

from __future__ import annotations

import abc
import enum
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.config import RandomStream, Space

#: The metric of a trial that failed or diverged: it ranks after every measured metric.
WORST = sys.float_info.max

#: Most trials that a search starts at once; a limit of the config may be lower. Each of them is a row that waits for
#: slots, written in one transaction, and few masters have slots for so many. Those behind them cost nothing until then.
MOST_AT_ONCE = 500

# Without this limit, a space whose points are nearly all refused would draw forever.
_REPLACEMENTS_PER_TRIAL = 10


class ExitedReason(str, enum.Enum):
    """Why a trial ended before the search ended it."""

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
        request_id: UUID of the trial in the search.
        hparams: its hyperparameters, nested as in the config.
        seed: seed of the trial's random streams.
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
    """The trial gets no further length: it ends after its last one."""

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
        failure: every trial failed, or the search itself cannot continue.
        reason: text for a failure that the trials do not explain.
    """

    cancel: bool = False
    failure: bool = False
    reason: str = ""


Action = Create | ValidateAfter | Close | Stop | Shutdown


@dataclass(frozen=True)
class WorkDone:
    """What the trials of a search have done so far.

    Attributes:
        ended: number of trials that have ended.
        invalid: how many of them ended because their hyperparameters were invalid.
        lengths: the progress of the other trials, in searcher units if the search gives lengths, otherwise fractions
            from 0 to 1. Trials without any progress may be left out.
    """

    ended: int
    invalid: int
    lengths: Sequence[float]


@dataclass(frozen=True)
class FilledRung:
    """The results of a rung.

    Attributes:
        bracket: counted from 0.
        length: the length at which trials are compared.
        trials: total number of trials of its bracket.
        results: (request id, metric) of the trials that reached it, best first.
    """

    bracket: int
    length: int
    trials: int
    results: tuple[tuple[str, float], ...]


class Draw:
    """Creates trials for a method.

    Args:
        space: the space of hyperparameters.
        stream: the experiment's stream of random numbers.
    """

    def __init__(self, space: Space, stream: RandomStream) -> None:
        self.space = space
        self._stream = stream

    def create(self, hparams: Mapping[str, Any] | None = None) -> Create:
        """Return a new trial with a new sample of the space, or with `hparams`."""
        # The order of draws is part of the format: hyperparameters, then the id, then the seed.
        point = self.space.sample(self._stream) if hparams is None else hparams
        request_id = self._stream.request_id()
        return Create(request_id, point, self._stream.trial_seed())

    def seed(self) -> int:
        """Return the seed of a sampler that proposes the next point."""
        return self._stream.trial_seed()


class SearchMethod(abc.ABC):
    """An algorithm that decides which trials run and for how long.

    It receives metrics with the sign with which smaller is better.
    """

    #: Whether the method compares trials; a trial that never reports the searcher's metric then fails.
    compares_trials = False

    #: Whether a validation without the searcher's metric is an error. Every search needs it to find its best trial.
    needs_metric = True

    #: Whether it gives trials lengths, and therefore receives only the validation at each length.
    gives_lengths = False

    #: Whether trials that have not begun are withdrawn when the user leaves their hyperparameters out of the space.
    replaces_waiting = True

    #: Whether the same events give the same decisions in every release. If not, the state is stored after each event.
    is_replayable = True

    #: The reported metric for how long a trial has trained; None if the method needs none.
    time_metric: str | None = None

    @abc.abstractmethod
    def initial(self, draw: Draw) -> list[Action]:
        """Return the first actions of the search."""

    def validation_completed(
        self, draw: Draw, request_id: str, metric: float, metrics: Mapping[str, Any]
    ) -> list[Action]:
        """Return the actions after a validation.

        Args:
            draw: creates new trials.
            request_id: the trial.
            metric: the searcher's metric, smaller is better.
            metrics: all reported metrics, with their original sign.
        """
        return []

    def trial_exited_early(self, draw: Draw, request_id: str, reason: ExitedReason) -> list[Action]:
        """Return the actions after a trial ended early; called at most once per trial.

        Args:
            draw: creates new trials.
            request_id: the trial.
            reason: why it ended.
        """
        return []

    def trial_exited(self, draw: Draw, request_id: str) -> list[Action]:
        """Return the actions after the end of a trial; called once per trial, after any early exit."""
        return []

    @abc.abstractmethod
    def progress(self, work: WorkDone) -> float:
        """Return the progress of the search, 0 to 1; NaN counts as 0."""

    @abc.abstractmethod
    def planned_trials(self) -> int:
        """Return the planned number of trials."""

    def planned_endings(self) -> Mapping[int, int]:
        """Return the number of trials that end at each length in a balanced search; empty if all train fully."""
        return {}

    def compared_lengths(self) -> Sequence[int]:
        """Return the lengths at which trials are compared, shortest first; empty if they are not compared."""
        return ()

    @property
    def full_length(self) -> int | None:
        """The length of a trial that is trained fully; None if the search gives no lengths."""
        return None

    def adopted(self, draw: Draw, create: Create) -> None:  # noqa: B027 - most methods learn nothing
        """Take note of a trial that the user added: the method decides nothing about it, but may learn from it."""

    def learned(self, request_id: str, metric: float) -> None:  # noqa: B027 - most methods learn nothing
        """Take note of a validation of a trial that the user added."""

    def left(self, request_id: str) -> None:  # noqa: B027 - most methods learn nothing
        """Take note that a trial ended that the user added."""

    def extended(self, draw: Draw, request_id: str) -> list[Action] | None:
        """Return the actions after the user gave a trial another length, if the method compares trials at its own.

        From then on the trial is the user's: the method receives no more of its events. None if it still does.
        """
        return None

    def narrowed(self, former: Space, space: Space) -> None:  # noqa: B027 - most methods learn nothing
        """Take note that the user narrowed the space from which new trials are drawn."""

    @abc.abstractmethod
    def withdrawn(self, draw: Draw, request_id: str) -> list[Action]:
        """Forget a trial that has not begun, and return the actions that create another one in its place."""

    def filled_rungs(self) -> Sequence[FilledRung]:
        """Return the results at all rungs; empty if there are no rungs."""
        return ()

    @abc.abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain values for JSON."""

    @abc.abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `snapshot` returned."""


def at_once(trials: int, max_concurrent_trials: int) -> int:
    """Return the number of trials that start at once.

    Args:
        trials: of the whole search.
        max_concurrent_trials: limit of the config; 0 for none.
    """
    return min(trials, max_concurrent_trials or MOST_AT_ONCE, MOST_AT_ONCE)


def refused_too_often(replaced: int, max_trials: int) -> Shutdown | None:
    """Return the end of a search whose script refused hyperparameters too often; None while it may continue.

    Args:
        replaced: number of trials that replaced refused trials.
        max_trials: number of trials that count.
    """
    limit = _REPLACEMENTS_PER_TRIAL * max_trials
    if replaced < limit:
        return None
    reason = f"The script refused the hyperparameters of {limit} trials. Narrow the `hyperparameters`."
    return Shutdown(failure=True, reason=reason)
