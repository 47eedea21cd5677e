"""Log lines about what clients cause, which could otherwise fill the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_PERIOD_S = 60.0


class Rate:
    """Lets one event of a kind pass in a minute, and counts the others; not thread-safe."""

    def __init__(self) -> None:
        self._next_s = float("-inf")
        self._omitted = 0

    def take(self, now_s: float) -> int | None:
        """Return how many events were omitted since the last one that passed; None if this one is omitted too.

        Args:
            now_s: seconds that never go back.
        """
        if now_s < self._next_s:
            self._omitted += 1
            return None
        omitted, self._omitted, self._next_s = self._omitted, 0, now_s + _PERIOD_S
        return omitted


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
        self._rate = Rate()

    def log(self, *details: object) -> None:
        """Log the line, or count it."""
        omitted = self._rate.take(self._clock())
        if omitted is None:
            return
        suffix = f" ({omitted} more like this since the last line.)" if omitted else ""
        self._logger.warning(self._text + suffix, *details)
