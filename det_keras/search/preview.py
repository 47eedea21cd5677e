"""What a search would do, before it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from det_keras.config import ExperimentConfig
from det_keras.search.methods import from_config
from det_keras.search.simulate import Outcome, seeded_curve, simulate

__all__ = ["Preview", "preview"]

# A larger search would keep the one who asks waiting.
_MOST_SIMULATED_TRIALS = 5000


@dataclass(frozen=True)
class Preview:
    """A search on paper, and one run of it in the simulator.

    Attributes:
        trials: how many count.
        unit: in which lengths are; empty where the scripts decide them.
        full_length: of a trial that nobody stops; None where its script decides.
        endings: how many trials end at which length, were the search balanced; empty if all train in full.
        simulated: one run of the search; None without lengths, or for a search too large to wait for.
    """

    trials: int
    unit: str
    full_length: int | None
    endings: Mapping[int, int]
    simulated: Outcome | None


def preview(config: ExperimentConfig, slots: int) -> Preview:
    """Return what a config's search would do on a number of slots.

    Raises:
        ConfigError: the method does not exist here.
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
        # Rank groups train side by side as often as they fit.
        at_once = max(1, slots // max(1, config.resources.slots_per_trial))
        if config.resources.max_slots is not None and config.resources.slots_per_trial:
            at_once = min(at_once, config.resources.max_slots // config.resources.slots_per_trial)
        sign = 1.0 if section.smaller_is_better else -1.0
        curve = seeded_curve(full)
        simulated = simulate(
            searcher, lambda trial, at: sign * curve(trial, at), slots=at_once, full_length=full
        )
    return Preview(trials, unit, full, searcher.method.planned_endings(), simulated)
