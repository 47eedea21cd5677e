"""The contract of the callbacks that `fit` injects.

Injected callbacks act at *boundaries*: after batches that one of them requested in advance, and at the ends of
epochs. Between two boundaries they are not called. At a boundary the user's callbacks have already received the
events of the batch or epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from det_keras.keras.training.progress import Validation
from det_keras.keras.training.run import Run

__all__ = ["Boundary", "InjectedCallback"]


@dataclass(frozen=True)
class Boundary:
    """A place between two batches at which the injected callbacks act.

    Attributes:
        at_epoch_end: whether an epoch has just ended, including its validation and callbacks.
        logs: Keras's running training metrics.
    """

    at_epoch_end: bool
    logs: Mapping[str, Any]


class InjectedCallback:
    """One task that `fit` does in addition to training; every method does nothing by default."""

    def on_begin(self, run: Run) -> None:
        """Act before training begins.

        On a resume the position is set already. Other state is restored later; see `on_restored`.
        """

    def next_batch(self, run: Run) -> int | None:
        """Return the batch, counted over this `fit`, after which to act at a boundary; None for no request."""
        return None

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        """Act between two batches."""

    def on_restored(self, run: Run) -> None:
        """Act after a checkpoint was restored; it follows `on_begin`."""

    def on_validation_begin(self, run: Run) -> None:
        """Act before a validation."""

    def on_validation(self, run: Run, validation: Validation) -> None:
        """Act after a validation."""

    def on_end(self, run: Run) -> None:
        """Act after training ended normally, when the model has its final state."""
