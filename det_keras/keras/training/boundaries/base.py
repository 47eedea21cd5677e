"""The contract of the boundary callbacks of a training.

They act at *boundaries*: after batches that one of them requested in advance, and at the ends of
epochs. Between two boundaries they are not called. At a boundary the user's callbacks have already received the
events of the batch or epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from det_keras.core import Context
from det_keras.keras.training.position import Target
from det_keras.keras.training.progress import Progress, Validation
from det_keras.keras.training.settings import FitSettings


class Run(Protocol):
    """A training, from the point of view of its boundary callbacks.

    Attributes:
        core: the framework-free context: reports, checkpoints, preemption.
        settings: how often to report, validate and save.
        phase_index: number of the training in the script, from 0.
        progress: the current progress of training, which the callbacks only read.
        is_ending: whether no further batch will be trained, by the current target and stop requests.
        global_batch_size: samples per update; None if neither the data nor the hyperparameters define it.
        steps_per_epoch: batches of an epoch; None while it is unknown.
    """

    core: Context
    settings: FitSettings
    phase_index: int
    progress: Progress

    @property
    def is_ending(self) -> bool: ...

    @property
    def global_batch_size(self) -> int | None: ...

    @property
    def steps_per_epoch(self) -> int | None: ...

    def counters(self) -> dict[str, int]:
        """Return the counts of trained batches, epochs and records, which are added to every report."""

    def next_interruption(self, start: int, unit: int) -> int:
        """Return the first batch after `start` at which training is known to be interrupted; see `Training`."""

    def should_stop(self) -> bool:
        """Return whether the master or a signal asked the workers to stop; the answer is the same on all of them."""

    def stop(self) -> None:
        """End training at this boundary."""

    def aim_at(self, target: Target) -> None:
        """Set where training ends."""

    def validate(self) -> Validation:
        """Validate the model of this boundary and report the result."""

    def save_checkpoint(self, *, final: bool = False) -> None:
        """Save the state of this boundary in the background, unless it is already saved; see `Training`."""

    def prepare_checkpoints(self) -> None:
        """Allocate memory for the copies of all variables in the background."""

    def wait_for_checkpoint(self) -> None:
        """Wait until every checkpoint is written; see `Training`."""


@dataclass(frozen=True)
class Boundary:
    """A place between two batches at which the boundary callbacks act.

    Attributes:
        at_epoch_end: whether an epoch has just ended, including its validation and callbacks.
        logs: Keras's running training metrics.
    """

    at_epoch_end: bool
    logs: Mapping[str, Any]


class BoundaryCallback:
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
