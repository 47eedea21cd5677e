"""Reads again the batches that were trained before an interruption, to bring their source to the same state."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

import keras

from det_keras.keras.checkpoint.random_state import capture_streams

logger = logging.getLogger(__name__)

_WORTH_A_LINE_S = 5.0


def replay(
    read: Callable[[], object], batches: int, reason: str, seconds: float | None = None
) -> frozenset[str]:
    """Read batches without training on them, and log the progress.

    Args:
        read: reads the next batch.
        batches: number of batches to read.
        reason: why the state of the source cannot be restored directly, as the end of a sentence.
        seconds: time that the interrupted run took for the batches, including training; None if unknown.

    Returns:
        The names of the random streams that reading has advanced. They are in the state that the data needs.
    """
    if batches == 0:
        return frozenset()
    took = f" The interrupted run took {seconds:.1f} s for them, training included." if seconds else ""
    logger.info("Reading %s batches again without training on them: %s.%s", batches, reason, took)
    bar = keras.utils.Progbar(batches, unit_name="batch") if sys.stdout.isatty() else None
    before, started = capture_streams(), time.monotonic()
    for number in range(1, batches + 1):
        read()
        if bar is not None:
            bar.update(number)
    took_s = time.monotonic() - started
    if took_s > _WORTH_A_LINE_S:
        logger.info("Read %s batches again in %.1f s.", batches, took_s)
    after = capture_streams()
    return frozenset(name for name, state in after.items() if state != before[name])
