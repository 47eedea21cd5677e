"""Log lines about what clients cause, which could otherwise fill the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_PERIOD_S = 60.0


class RepeatedLine:
    """A warning that is logged at most once a minute; it says how often it applied since the line before.

    Not thread-safe.

    Args:
        logger: the logger of the module that observes the event.
        text: the line, with `%s` for details.
        clock: seconds that never go back.
    """

    def __init__(
        self, logger: logging.Logger, text: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._text = text
        self._clock = clock
        self._next_s = float("-inf")
        self._omitted = 0

    def log(self, *details: object) -> None:
        """Log the line, or count it."""
        now_s = self._clock()
        if now_s < self._next_s:
            self._omitted += 1
            return
        suffix = f" ({self._omitted} more like this since the last line.)" if self._omitted else ""
        self._logger.warning(self._text + suffix, *details)
        self._omitted, self._next_s = 0, now_s + _PERIOD_S
