"""Searches to test with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from det_keras import search
from det_keras.config import load_experiment_config
from det_keras.search import Action, Create, Searcher
from det_keras.search.simulate import Outcome, SimulatedTrial, simulate

SPACE = "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n"


def searcher(fields: str, space: str = SPACE, seed: int = 42) -> Searcher:
    """Return the searcher of a config with these fields."""
    text = f"entrypoint: a\nreproducibility: {{experiment_seed: {seed}}}\n{space}searcher: {{metric: loss, {fields}}}\n"
    return search.from_config(load_experiment_config(text).config)


def created(actions: Sequence[Action]) -> list[str]:
    """Return the trials that actions make."""
    return [action.request_id for action in actions if isinstance(action, Create)]


def alone(one: Searcher, metric: Callable[[SimulatedTrial, int], float]) -> Outcome:
    """Run a search on one slot: the lowest-numbered trial that has work trains, up to its next report."""
    return simulate(one, metric, slots=1)
