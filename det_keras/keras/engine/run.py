"""What a running `fit` offers to its parts, so that none of them has to know how it trains."""

from __future__ import annotations

from typing import Any, Protocol

from det_keras.core import Context
from det_keras.keras.data import DataSource
from det_keras.keras.engine.progress import Progress, Validation
from det_keras.keras.engine.settings import FitSettings

__all__ = ["Run"]


class Run(Protocol):
    """One running `fit`, as its injected callbacks see it.

    Attributes:
        core: the framework-free context: reports, checkpoints, preemption.
        settings: how often to report, validate and save.
        source: the training data.
        progress: how far training has come.
        is_ending: whether no further batch will be trained, as far as is known now.
        global_batch_size: samples per update; None where neither the data nor the hyperparameters tell.
    """

    core: Context
    settings: FitSettings
    source: DataSource
    progress: Progress

    @property
    def is_ending(self) -> bool: ...

    @property
    def global_batch_size(self) -> int | None: ...

    def counters(self) -> dict[str, Any]:
        """Return how much is trained, as it is added to every report."""

    def next_interruption(self, start: int, unit: int) -> int:
        """Return the batch before which training is sure to stop for something, from `start` on."""

    def should_stop(self) -> bool:
        """Return whether the master or a signal asked the workers to stop; the answer is the same on all of them."""

    def stop(self) -> None:
        """End training at this boundary."""

    def validate(self) -> Validation:
        """Validate the model of this boundary and report the result."""

    def save_checkpoint(self, *, final: bool = False) -> None:
        """Save the state of this boundary in the background, unless it is saved already."""

    def prepare_checkpoints(self) -> None:
        """Allocate memory for the copies of all variables in the background."""

    def wait_for_checkpoint(self) -> None:
        """Wait until every checkpoint is written; raises CheckpointError if the newest could not be."""
