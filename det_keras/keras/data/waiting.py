"""Measures how much of its time a training waits for data.

Training takes its batches inside of a compiled step, where nothing can be timed. What can be seen from outside is
whether the data is ahead: whether a batch is ready beside the one that is being trained. Training does not wait while
one is; where one never is, the data is what limits it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from det_keras.keras.data.base import DataSource
from det_keras.protocol.metrics import DATA_WAIT

logger = logging.getLogger(__name__)

_MUCH_PERCENT = 50.0
# Samples, one each ten seconds: the first batches and the caches that they fill do not count as a habit.
_LONG = 6


class DataWait:
    """Looks whether the data is ahead of training, from the profiler's thread; see `Probe`.

    Args:
        source: the training data.
        trained_steps: returns the number of steps of the current epoch that are trained; None outside of epochs.
        at_once: steps that Keras runs in one execution.
    """

    def __init__(self, source: DataSource, trained_steps: Callable[[], int | None], at_once: int = 1) -> None:
        self._source = source
        self._at_once = at_once
        self._trained_steps = trained_steps
        self._looks = self._behind = 0
        self._long = 0

    def look(self) -> None:
        """Look once."""
        step = self._trained_steps()
        is_ahead = None if step is None else self._source.is_ahead(step, self._at_once)
        if is_ahead is not None:
            self._looks += 1
            self._behind += not is_ahead

    def sample(self) -> Mapping[str, Mapping[str, object]]:
        """Return how often there was no batch ahead since the last call, in percent; {} if there was no look."""
        looks, behind = self._looks, self._behind
        self._looks = self._behind = 0
        if looks == 0:
            return {}
        percent = 100.0 * behind / looks
        self._long = self._long + 1 if percent >= _MUCH_PERCENT else 0
        if self._long == _LONG:
            logger.warning(
                "Training waits for its data most of the time. Parallel loading helps: `num_parallel_calls` and "
                "`prefetch` in tf.data, `workers` in a PyDataset; and so does a cache. System metrics have it as "
                "`%s`.",
                DATA_WAIT,
            )
        return {"cpu": {DATA_WAIT: percent}}
