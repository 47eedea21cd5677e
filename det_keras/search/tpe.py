"""Search with a tree-structured Parzen estimator: new trials are near good trials.

Only the sampler is Optuna's. For every proposal a study is built in memory from the search's own state and discarded
afterwards. All state is therefore in the master's database, and a search resumes exactly.

Source: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from det_keras.config import Space
from det_keras.config.searching.hyperparameters import (
    Categorical,
    DoubleRange,
    Hyperparameter,
    IntRange,
    LogRange,
)
from det_keras.search.base import WORST, Action, Create, Draw, ExitedReason
from det_keras.search.coordinates import coordinates_of, point_at, varying_leaves
from det_keras.search.random_search import RandomSearch


class TpeSearch(RandomSearch):
    """Random search at first; later every new trial is proposed from the results so far.

    Args:
        max_trials: number of trials that count.
        max_concurrent_trials: maximum number of running trials; 0 for `MOST_AT_ONCE`. With more than 1, proposals
            depend on the order of results.
        max_length: the length of each trial, in the unit of the config; None if the scripts decide.
        n_startup_trials: number of results before the estimator is used.
    """

    compares_trials = True
    # Its proposals are Optuna's, and take long.
    is_replayable = False

    def __init__(
        self,
        max_trials: int,
        max_concurrent_trials: int = 0,
        max_length: int | None = None,
        n_startup_trials: int = 10,
    ) -> None:
        super().__init__(max_trials, max_concurrent_trials, max_length)
        self._n_startup_trials = n_startup_trials
        # In the order of creation: the estimator gives older results less weight.
        self._points: dict[str, Mapping[str, float]] = {}
        self._values: dict[str, float] = {}
        self._exited: set[str] = set()

    def validation_completed(
        self, draw: Draw, request_id: str, metric: float, metrics: Mapping[str, Any]
    ) -> list[Action]:
        self.learned(request_id, metric)
        return []

    def trial_exited_early(self, draw: Draw, request_id: str, reason: ExitedReason) -> list[Action]:
        if reason is not ExitedReason.USER_CANCELED:
            # The estimator should avoid values for which trials fail or refuse their hyperparameters.
            self._values[request_id] = WORST
        return super().trial_exited_early(draw, request_id, reason)

    def trial_exited(self, draw: Draw, request_id: str) -> list[Action]:
        self._exited.add(request_id)
        return super().trial_exited(draw, request_id)

    def withdrawn(self, draw: Draw, request_id: str) -> list[Action]:
        self._points.pop(request_id, None)
        return super().withdrawn(draw, request_id)

    def adopted(self, draw: Draw, create: Create) -> None:
        if draw.space.contains(create.hparams):
            self._points[create.request_id] = coordinates_of(draw.space, create.hparams)

    def learned(self, request_id: str, metric: float) -> None:
        self._values[request_id] = min(metric, self._values.get(request_id, WORST))

    def left(self, request_id: str) -> None:
        self._exited.add(request_id)

    def narrowed(self, former: Space, space: Space) -> None:
        # The estimator knows points of its own space only, and those of a list by their places in it.
        points = {trial: point_at(former, point) for trial, point in self._points.items()}
        self._points = {
            trial: coordinates_of(space, point) for trial, point in points.items() if space.contains(point)
        }

    def snapshot(self) -> dict[str, Any]:
        return {
            **super().snapshot(),
            "points": dict(self._points),
            "values": dict(self._values),
            "exited": sorted(self._exited),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._points, self._values = dict(state["points"]), dict(state["values"])
        self._exited = set(state["exited"])

    def _create(self, draw: Draw) -> Create:
        results = sum(trial in self._values and trial in self._points for trial in self._exited)
        is_proposed = results >= self._n_startup_trials and not draw.space.is_constant
        create = draw.create(self._proposal(draw) if is_proposed else None)
        self.adopted(draw, create)
        return create

    def _proposal(self, draw: Draw) -> Mapping[str, Any]:
        # Imported here: Optuna is optional, and slow to import.
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            # Optuna warns that `constant_liar` is experimental.
            warnings.simplefilter("ignore")
            # Running trials count as bad, so that no new trial gets nearly the same values.
            sampler = optuna.samplers.TPESampler(seed=draw.seed(), n_startup_trials=0, constant_liar=True)
        study = optuna.create_study(sampler=sampler)
        kinds = {place: _distribution(leaf) for place, leaf in varying_leaves(draw.space).items()}
        states = optuna.trial.TrialState
        for request_id, point in self._points.items():
            is_over, value = request_id in self._exited, self._values.get(request_id)
            if is_over and value is None:
                continue  # cancelled before its first report
            study.add_trial(
                optuna.trial.create_trial(
                    state=states.COMPLETE if is_over else states.RUNNING,
                    value=value if is_over else None,
                    params=dict(point),
                    distributions=kinds,
                )
            )
        return point_at(draw.space, study.ask(kinds).params)


def _distribution(leaf: Hyperparameter) -> Any:
    from optuna import distributions

    if isinstance(leaf, Categorical):
        return distributions.CategoricalDistribution(range(len(leaf.vals)))
    if isinstance(leaf, IntRange):
        return distributions.IntDistribution(leaf.minval, leaf.maxval)
    assert isinstance(leaf, (DoubleRange, LogRange))
    return distributions.FloatDistribution(leaf.minval, leaf.maxval)
