"""Previews of searches: the planned trials, and a simulated run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from det_keras.config import ExperimentConfig
from det_keras.search.methods import from_config
from det_keras.search.simulate import Outcome, seeded_curve, simulate

# Simulating a larger search would take too long for a request.
_MOST_SIMULATED_TRIALS = 5000


@dataclass(frozen=True)
class Preview:
    """The plan of a search, and one simulated run.

    Attributes:
        trials: number of trials that count.
        unit: unit of lengths; empty if the scripts decide them.
        full_length: length of a trial that is not stopped; None if its script decides.
        endings: number of trials that end at each length in a balanced search; empty if all train fully.
        simulated: one run of the search; None without lengths, or for a large search.
    """

    trials: int
    unit: str
    full_length: int | None
    endings: Mapping[int, int]
    simulated: Outcome | None


def preview(config: ExperimentConfig, slots: int) -> Preview:
    """Return the preview of a config's search on a number of slots.

    Raises:
        ConfigError: the method is unknown.
    """
    searcher = from_config(config)
    section = config.searcher
    length = section.max_length
    unit, full = (
        (section.time_metric or "", section.max_time) if length is None else (length.unit.value, length.value)
    )
    trials = searcher.method.planned_trials()
    simulated = None
    if full is not None and trials <= _MOST_SIMULATED_TRIALS:
        # As many trials train at the same time as fit on the slots.
        at_once = max(1, slots // max(1, config.resources.slots_per_trial))
        if config.resources.max_slots is not None and config.resources.slots_per_trial:
            at_once = min(at_once, config.resources.max_slots // config.resources.slots_per_trial)
        sign = 1.0 if section.smaller_is_better else -1.0
        curve = seeded_curve(full)
        simulated = simulate(
            searcher, lambda trial, at: sign * curve(trial, at), slots=at_once, full_length=full
        )
    return Preview(trials, unit, full, searcher.method.planned_endings(), simulated)
