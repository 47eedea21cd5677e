"""Simulated searches: any method with a synthetic objective, thousands of trials per second.

A simulated trial trains one unit of length per unit of time. Trials are trained on a number of slots, in the order of
their creation, as by the master's scheduler. This shows the cost of a search, the ends of its trials and its result
before anything runs. Tests run every method through the same code.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from det_keras.search.base import Action, Close, Create, ExitedReason, Shutdown, Stop, ValidateAfter
from det_keras.search.searcher import Searcher

__all__ = ["Objective", "Outcome", "SimulatedExit", "SimulatedTrial", "seeded_curve", "simulate"]


@dataclass
class SimulatedTrial:
    """A trial of a simulated search.

    Attributes:
        number: 1 for the first.
        request_id: its id in the search.
        hparams: its hyperparameters.
        seed: seed of its random streams.
        length: length that it has trained.
        metrics: reported metrics by length.
        reason: why it ended early; None if it did not.
    """

    number: int
    request_id: str
    hparams: Mapping[str, Any]
    seed: int
    length: int = 0
    metrics: dict[int, float] = field(default_factory=dict)
    reason: ExitedReason | None = None

    def best(self, *, smaller_is_better: bool = True) -> float | None:
        """Return its best finite metric; None if there is none."""
        finite = [metric for metric in self.metrics.values() if math.isfinite(metric)]
        return (min if smaller_is_better else max)(finite, default=None)


#: Returns the searcher's metric of a trial that has trained for a length, or raises `SimulatedExit`.
Objective = Callable[[SimulatedTrial, int], float]


class SimulatedExit(Exception):  # noqa: N818 - it reports an end, which is not always an error
    """Ends a simulated trial early.

    Args:
        reason: why it ends.
    """

    def __init__(self, reason: ExitedReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Outcome:
    """The result of a simulated search.

    Attributes:
        trials: all trials, in the order of their creation.
        ending: how the search ended.
        decisions: number of events that the search received.
        time: simulated duration; a unit of length takes a unit of time.
        most_at_once: maximum number of trials that trained at the same time.
    """

    trials: Sequence[SimulatedTrial]
    ending: Shutdown | None
    decisions: int
    time: float
    most_at_once: int

    @property
    def total_length(self) -> int:
        """Sum of the lengths of all trials."""
        return sum(trial.length for trial in self.trials)

    def endings(self) -> Mapping[int, int]:
        """Return the number of trials that ended at each length."""
        return dict(sorted(Counter(trial.length for trial in self.trials).items()))

    def best(self, *, smaller_is_better: bool = True) -> float | None:
        """Return the best metric of all trials; None if there is none."""
        values = [trial.best(smaller_is_better=smaller_is_better) for trial in self.trials]
        known = [value for value in values if value is not None]
        return (min if smaller_is_better else max)(known, default=None)


def simulate(
    searcher: Searcher,
    objective: Objective,
    *,
    slots: int = 16,
    full_length: int | None = None,
    report_every: int | None = None,
    pace: Callable[[SimulatedTrial], float] | None = None,
    on_event: Callable[[Searcher], Searcher] | None = None,
) -> Outcome:
    """Run a search to its end, without processes.

    Lengths are in the unit of the search: that of ``max_length``, or of ``time_metric``.

    Args:
        searcher: the searcher, before its first event.
        objective: returns the searcher's metric of a trial at a length.
        slots: number of trials that train at the same time.
        full_length: the length at which a script ends if the search does not stop it; by default the longest length
            that the search compares. Without effect if the search gives lengths.
        report_every: the length between two reports of such a script; by default it reports when the search compares,
            and at its end.
        pace: returns the time that a trial takes for one unit of length; 1 for all trials by default.
        on_event: receives the searcher before each event and returns the searcher to continue with, such as a restored
            one.

    Returns:
        The trials, how the search ended, and how long it took.

    Example:
        ```pycon
        >>> from det_keras import search
        >>> from det_keras.config import load_experiment_config
        >>> config = load_experiment_config({
        ...     "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
        ...     "searcher": {"name": "random", "metric": "loss", "max_trials": 4, "max_length": {"epochs": 8}},
        ...     "reproducibility": {"experiment_seed": 1},
        ... }, alone=True).config
        >>> outcome = simulate(search.from_config(config), lambda trial, epochs: trial.hparams["x"], slots=2)
        >>> len(outcome.trials), outcome.total_length, outcome.time
        (4, 32, 16.0)
        >>> outcome.best() == min(trial.hparams["x"] for trial in outcome.trials)
        True
        ```
    """
    return _Simulation(searcher, objective, slots, full_length, report_every, pace, on_event).run()


def seeded_curve(max_length: int) -> Objective:
    """Return an objective whose curves fall from about 1, with a limit and speed drawn from the trial's seed.

    Args:
        max_length: length at which a typical trial is near its limit.
    """

    def loss(trial: SimulatedTrial, length: int) -> float:
        chance = random.Random(trial.seed)
        floor, speed = chance.random(), chance.uniform(2.0, 6.0)
        return floor + (1.0 - floor) * math.exp(-speed * length / max_length)

    return loss


class _Simulation:
    """The state of a running simulation."""

    def __init__(
        self,
        searcher: Searcher,
        objective: Objective,
        slots: int,
        full_length: int | None,
        report_every: int | None,
        pace: Callable[[SimulatedTrial], float] | None,
        on_event: Callable[[Searcher], Searcher] | None,
    ) -> None:
        self._searcher = searcher
        self._objective = objective
        self._free_slots = slots
        compared = searcher.method.compared_lengths()
        self._full_length = full_length or max(compared, default=1)
        every = range(report_every, self._full_length, report_every) if report_every else compared
        self._report_lengths = [
            *(length for length in every if length < self._full_length),
            self._full_length,
        ]
        self._pace = pace or (lambda trial: 1.0)
        self._on_event = on_event
        self._trials: dict[str, SimulatedTrial] = {}
        self._waiting: list[tuple[int, str]] = []
        # The times of the next reports of running trials.
        self._reports: list[tuple[float, int, str]] = []
        self._running: set[str] = set()
        self._stopped: set[str] = set()
        self._ended: set[str] = set()
        self._ending: Shutdown | None = None
        self._decisions = 0
        self._time = 0.0
        self._most_at_once = 0

    def run(self) -> Outcome:
        self._tell(lambda searcher: searcher.initial())
        self._fill_slots()
        while self._reports and self._ending is None:
            self._time, _, request_id = heapq.heappop(self._reports)
            self._report(self._trials[request_id])
            self._fill_slots()
        return Outcome(
            list(self._trials.values()), self._ending, self._decisions, self._time, self._most_at_once
        )

    def _fill_slots(self) -> None:
        while self._waiting and self._free_slots > 0:
            _, request_id = heapq.heappop(self._waiting)
            self._free_slots -= 1
            self._running.add(request_id)
            self._continue(self._trials[request_id])
        self._most_at_once = max(self._most_at_once, len(self._running))

    def _continue(self, trial: SimulatedTrial) -> None:
        step = self._next_length(trial) - trial.length
        at = self._time + step * self._pace(trial)
        heapq.heappush(self._reports, (at, trial.number, trial.request_id))

    def _next_length(self, trial: SimulatedTrial) -> int:
        operation = self._searcher.operation(trial.request_id)
        if operation is not None:
            return operation.length
        return self._report_lengths[bisect.bisect_right(self._report_lengths, trial.length)]

    def _report(self, trial: SimulatedTrial) -> None:
        request_id, length = trial.request_id, self._next_length(trial)
        trial.length = length
        try:
            metric = self._objective(trial, length)
        except SimulatedExit as exit_:
            trial.reason = exit_.reason
            self._end(trial)
            return
        trial.metrics[length] = metric
        time_metric = self._searcher.method.time_metric
        metrics = {} if time_metric is None else {time_metric: length}
        if self._searcher.operation(request_id) is None:
            self._tell(lambda searcher: searcher.validation_reported(request_id, metric, metrics))
        else:
            self._tell(lambda searcher: searcher.operation_completed(request_id, length, metric, metrics))
        self._follow(trial)

    def _follow(self, trial: SimulatedTrial) -> None:
        """Continue, pause or end a trial after its report."""
        request_id = trial.request_id
        if self._searcher.operation(request_id) is None:
            is_done = request_id in self._stopped or trial.length >= self._full_length
            if is_done:
                self._end(trial)
            else:
                self._continue(trial)
        elif self._searcher.has_work(request_id):
            self._continue(trial)
        elif self._searcher.is_closed(request_id):
            self._end(trial)
        else:
            self._leave(request_id)

    def _leave(self, request_id: str) -> None:
        if request_id in self._running:
            self._running.discard(request_id)
            self._free_slots += 1

    def _end(self, trial: SimulatedTrial) -> None:
        request_id, reason = trial.request_id, trial.reason
        if request_id in self._ended:
            return
        self._ended.add(request_id)
        self._leave(request_id)
        if reason is not None:
            self._tell(lambda searcher: searcher.trial_exited_early(request_id, reason))
        self._tell(lambda searcher: searcher.trial_exited(request_id))

    def _tell(self, event: Callable[[Searcher], list[Action]]) -> None:
        if self._on_event is not None:
            self._searcher = self._on_event(self._searcher)
        self._decisions += 1
        actions = deque(event(self._searcher))
        while actions:
            action = actions.popleft()
            if isinstance(action, Create):
                actions.extendleft(reversed(self._create(action)))
            elif isinstance(action, Shutdown):
                self._ending = action
            else:
                self._direct(self._trials[action.request_id], action)

    def _create(self, action: Create) -> list[Action]:
        trial = SimulatedTrial(len(self._trials) + 1, action.request_id, action.hparams, action.seed)
        self._trials[action.request_id] = trial
        heapq.heappush(self._waiting, (trial.number, trial.request_id))
        return self._searcher.trial_created(action.request_id)

    def _direct(self, trial: SimulatedTrial, action: ValidateAfter | Close | Stop) -> None:
        request_id = trial.request_id
        if isinstance(action, Stop):
            self._stopped.add(request_id)
        elif isinstance(action, ValidateAfter):
            # A new trial is already in the queue, and a running trial continues after its report.
            if trial.length and request_id not in self._running:
                heapq.heappush(self._waiting, (trial.number, request_id))
        elif request_id not in self._running and not self._searcher.has_work(request_id):
            self._end(trial)
