"""Measures how fast a training is, and how long it will take until its end.

The profiler's thread looks at the position of the training twice a second. Nothing is done in batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from det_keras.keras.training.progress import Progress
from det_keras.protocol.metrics import BATCHES_PER_SECOND, SAMPLES_PER_SECOND, SECONDS_LEFT


@dataclass(frozen=True)
class _Look:
    """What was seen of a training.

    Attributes:
        time_s: when.
        batches: batches trained so far; None outside of epochs.
    """

    time_s: float
    batches: int | None


@dataclass(frozen=True)
class _Mark:
    """A time at which the fraction of the training that is done has grown."""

    time_s: float
    fraction: float


class Pace:
    """Measures the speed inside of epochs, and the time until the end of the training; see `Probe`.

    Without a batch size the speed is in batches. The time left includes validations and checkpoints, which are part of
    the time that was measured so far. It is not known until progress was seen twice, nor while a search may give the
    trial more to train.

    Args:
        progress: the progress of the training.
        clock: returns the time in seconds.

    Attributes:
        steps_per_epoch: batches of an epoch; None while it is unknown.
        batch_size: samples per batch, over all workers; None if unknown.
    """

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._clock = clock
        # The training's thread notes them: asking the data on the profiler's thread might change what training reads.
        self.steps_per_epoch: int | None = None
        self.batch_size: int | None = None
        self._before: _Look | None = None
        # The batches that were trained before the first look: the next one traces the step.
        self._untrained: int | None = None
        self._batches, self._seconds = 0, 0.0
        self._first: _Mark | None = None
        self._newest: _Mark | None = None

    def look(self) -> None:
        """Look once."""
        position = self._progress.position
        now = _Look(self._clock(), position.batches if self._progress.is_in_epoch else None)
        before, self._before = self._before, now
        if now.batches is not None:
            if self._untrained is None:
                self._untrained = now.batches
            if before is not None and before.batches is not None and before.batches > self._untrained:
                self._batches += now.batches - before.batches
                self._seconds += now.time_s - before.time_s
        fraction = self._progress.target.fraction(position, self.steps_per_epoch)
        self._mark(_Mark(now.time_s, fraction))

    def sample(self) -> Mapping[str, Mapping[str, object]]:
        """Return the speed since the last call and the time left, as far as they are known."""
        batches, seconds = self._batches, self._seconds
        self._batches, self._seconds = 0, 0.0
        found: dict[str, object] = {}
        if batches > 0 and seconds > 0:
            speed = batches / seconds
            if self.batch_size is None:
                found[BATCHES_PER_SECOND] = speed
            else:
                found[SAMPLES_PER_SECOND] = speed * self.batch_size
        left = self._seconds_left()
        if left is not None:
            found[SECONDS_LEFT] = left
        return {"cpu": found} if found else {}

    def _mark(self, mark: _Mark) -> None:
        newest = self._newest
        if newest is not None and mark.fraction < newest.fraction:
            # The search has given a longer length.
            self._first, newest = None, None
        if newest is None:
            self._newest = mark
        elif mark.fraction > newest.fraction:
            # Not the first look: the part that was done before it took another process or the tracing of the step.
            self._first = self._first or mark
            self._newest = mark

    def _seconds_left(self) -> float | None:
        first, newest = self._first, self._newest
        if first is None or newest is None or newest.fraction <= first.fraction:
            return None
        if not self._progress.target.is_final:
            return None
        speed = (newest.fraction - first.fraction) / (newest.time_s - first.time_s)
        return max((1.0 - newest.fraction) / speed - (self._clock() - newest.time_s), 0.0)
