"""Creates the search method of a config."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from det_keras.config import ExperimentConfig
from det_keras.config import Searcher as SearcherSection
from det_keras.config.searching.searcher import MOST_RUNGS
from det_keras.errors import ConfigError
from det_keras.search.base import SearchMethod
from det_keras.search.bracket import Bracket
from det_keras.search.grid import GridSearch
from det_keras.search.halving import HalvingSearch
from det_keras.search.promotion import PromotionBracket
from det_keras.search.random_search import RandomSearch, SingleSearch
from det_keras.search.rungs import BracketPlan, adaptive_brackets, plan_bracket, plan_brackets
from det_keras.search.searcher import Searcher
from det_keras.search.stopping import StoppingBracket
from det_keras.search.tpe import TpeSearch


def from_config(config: ExperimentConfig) -> Searcher:
    """Return the searcher of a config, before its first event.

    Raises:
        ConfigError: the method is unknown, or cannot be run with this config.
    """
    section = config.searcher
    if section.name not in _METHODS:
        raise ConfigError.at(
            "searcher.name",
            f"{section.name!r} is not available. Use one of {', '.join(f'`{name}`' for name in _METHODS)}.",
        )
    return Searcher(
        _METHODS[section.name](config),
        config.hyperparameters,
        config.reproducibility.experiment_seed,
        smaller_is_better=section.smaller_is_better,
    )


def _single(config: ExperimentConfig) -> SearchMethod:
    return SingleSearch(_max_length(config.searcher))


def _random(config: ExperimentConfig) -> SearchMethod:
    section = config.searcher
    assert section.max_trials is not None
    return RandomSearch(section.max_trials, section.max_concurrent_trials, _max_length(section))


def _grid(config: ExperimentConfig) -> SearchMethod:
    section = config.searcher
    return GridSearch(
        config.hyperparameters.grid_points(), section.max_concurrent_trials, _max_length(section)
    )


def _tpe(config: ExperimentConfig) -> SearchMethod:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError.at(
            "searcher.name", "`tpe` requires Optuna. Install it with `pip install 'det_keras[search]'`."
        )
    section = config.searcher
    assert section.max_trials is not None
    return TpeSearch(
        section.max_trials, section.max_concurrent_trials, _max_length(section), section.n_startup_trials
    )


def _halving(config: ExperimentConfig) -> SearchMethod:
    section = config.searcher
    try:
        plans = _plans(section)
    except OverflowError:
        raise ConfigError.at(
            "searcher.divisor", f"{section.divisor!r} is too large for this number of rungs."
        ) from None
    # A config with `max_length` has the older form, in which the search gives trials lengths.
    gives_lengths = section.max_length is not None
    kind: type[Bracket] = StoppingBracket if section.stop_once else PromotionBracket
    brackets = [kind(plan, gives_lengths=gives_lengths) for plan in plans]
    return HalvingSearch(brackets, None if gives_lengths else section.time_metric)


def _plans(section: SearcherSection) -> Sequence[BracketPlan]:
    assert section.max_trials is not None
    assert section.max_time is not None
    divisor, length, trials = section.divisor, section.max_time, section.max_trials
    if section.name == "async_halving":
        assert section.num_rungs is not None
        _check_rungs("num_rungs", [section.num_rungs])
        return [plan_bracket(section.num_rungs, divisor, length, trials, section.max_concurrent_trials)]
    brackets = list(section.bracket_rungs)
    _check_rungs("bracket_rungs", brackets)
    if not brackets:
        brackets = adaptive_brackets(
            section.mode, min(section.max_rungs, MOST_RUNGS), divisor, length, trials
        )
    return plan_brackets(brackets, divisor, length, trials, section.max_concurrent_trials)


def _check_rungs(field: str, rungs: Sequence[int]) -> None:
    if rungs and max(rungs) > MOST_RUNGS:
        raise ConfigError.at(
            f"searcher.{field}", f"{max(rungs)} rungs are too many. Use at most {MOST_RUNGS}."
        )


def _max_length(section: SearcherSection) -> int | None:
    return None if section.max_length is None else section.max_length.value


_METHODS: dict[str, Callable[[ExperimentConfig], SearchMethod]] = {
    "single": _single,
    "random": _random,
    "grid": _grid,
    "adaptive_asha": _halving,
    "async_halving": _halving,
    "tpe": _tpe,
}
