"""Reads batches again that were trained on before an interruption, to bring their source to where it was."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

import keras

from det_keras.keras.checkpoint.random_state import capture_streams

__all__ = ["replay"]

logger = logging.getLogger(__name__)

_WORTH_A_LINE_S = 5.0


def replay(
    read: Callable[[], object], batches: int, reason: str, seconds: float | None = None
) -> frozenset[str]:
    """Read batches without training on them, and show how far it is.

    Args:
        read: reads the next batch.
        batches: how many to read.
        reason: why their source cannot be brought there at once, as the end of a sentence.
        seconds: what the run before took for them, training included; None where that is not known.

    Returns:
        The names of the random streams that reading has drawn from: they are now where the data needs them.
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
