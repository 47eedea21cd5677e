"""Search methods: pure state machines without I/O, one file per method."""

from __future__ import annotations

from det_keras.config import ExperimentConfig
from det_keras.errors import ConfigError
from det_keras.search.base import (
    Action,
    Close,
    Create,
    ExitedReason,
    SearchMethod,
    Shutdown,
    Stop,
    ValidateAfter,
)
from det_keras.search.grid import GridSearch
from det_keras.search.random_search import RandomSearch
from det_keras.search.searcher import Operation, Searcher
from det_keras.search.single import SingleSearch

__all__ = [
    "Action",
    "Close",
    "Create",
    "ExitedReason",
    "Operation",
    "SearchMethod",
    "Searcher",
    "Shutdown",
    "Stop",
    "ValidateAfter",
    "from_config",
]


def from_config(config: ExperimentConfig) -> Searcher:
    """Return the searcher that a config asks for, before its first event.

    Raises:
        ConfigError: the method does not exist here.
    """
    return Searcher(
        _method(config),
        config.hyperparameters,
        config.reproducibility.experiment_seed,
        smaller_is_better=config.searcher.smaller_is_better,
    )


def _method(config: ExperimentConfig) -> SearchMethod:
    section = config.searcher
    max_length = section.max_length.value if section.max_length is not None else None
    if section.name == "single":
        return SingleSearch(max_length)
    if section.name == "random":
        assert section.max_trials is not None
        return RandomSearch(section.max_trials, section.max_concurrent_trials, max_length)
    if section.name == "grid":
        return GridSearch(config.hyperparameters.grid(), section.max_concurrent_trials, max_length)
    raise ConfigError.at(
        "searcher.name", f"{section.name!r} is not available yet. Use `single`, `random` or `grid`."
    )
