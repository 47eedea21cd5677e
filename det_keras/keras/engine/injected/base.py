"""The contract of what `fit` injects, and what it is told.

Injected callbacks act at *boundaries*: batches that one of them named in advance, and the ends of epochs.
Between two boundaries they cost nothing. They see a state that all of the user's own callbacks have
already seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from det_keras.keras.engine.progress import Validation
from det_keras.keras.engine.run import Run

__all__ = ["Boundary", "InjectedCallback"]


@dataclass(frozen=True)
class Boundary:
    """A place between two batches at which the injected callbacks act.

    Attributes:
        at_epoch_end: whether an epoch has just ended, its validation and callbacks included.
        logs: Keras's running training metrics.
    """

    at_epoch_end: bool
    logs: Mapping[str, Any]


class InjectedCallback:
    """One job that `fit` does beside training; every method does nothing by default."""

    def on_begin(self, run: Run) -> None:
        """Training is about to begin, at a known position; the state of a checkpoint, if any, is put back after it."""

    def next_batch(self, run: Run) -> int | None:
        """Return the batch, counted over this `fit`, after which it wants a boundary; None for no wish."""
        return None

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        """Act between two batches."""

    def on_restored(self, run: Run) -> None:
        """A checkpoint was put back, after `on_begin`."""

    def on_validation_begin(self, run: Run) -> None:
        """A validation is about to run."""

    def on_validation(self, run: Run, validation: Validation) -> None:
        """A validation ended."""

    def on_end(self, run: Run) -> None:
        """Training ended by itself; the final state is in place."""
