"""The interfaces of a training: of the context for the training, and of the training for its injected callbacks.

They are independent of how it trains: by a `fit`, or by a loop written by hand.
"""

from __future__ import annotations

from typing import Any, Protocol

from det_keras.core import Context
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.training.phase import PhaseRecord
from det_keras.keras.training.progress import Progress, Validation
from det_keras.keras.training.settings import FitSettings
from det_keras.keras.training.snapshot import CodeArchive

__all__ = ["Run", "TrainingContext"]


class Run(Protocol):
    """The interface of a running `fit`, or of a loop written by hand, for its injected callbacks.

    Attributes:
        core: the framework-free context: reports, checkpoints, preemption.
        settings: how often to report, validate and save.
        progress: the current progress of training.
        is_ending: whether no further batch will be trained, by the current target and stop requests.
        global_batch_size: samples per update; None if neither the data nor the hyperparameters define it.
        steps_per_epoch: batches of an epoch; None while it is unknown.
    """

    core: Context
    settings: FitSettings
    progress: Progress

    @property
    def is_ending(self) -> bool: ...

    @property
    def global_batch_size(self) -> int | None: ...

    @property
    def steps_per_epoch(self) -> int | None: ...

    def counters(self) -> dict[str, Any]:
        """Return the counts of trained batches, epochs and records, which are added to every report."""

    def next_interruption(self, start: int, unit: int) -> int:
        """Return the first batch after `start` at which training is known to be interrupted.

        Args:
            start: a batch, counted over this training.
            unit: the maximum number of batches between two interruptions.
        """

    def should_stop(self) -> bool:
        """Return whether the master or a signal asked the workers to stop; the answer is the same on all of them."""

    def stop(self) -> None:
        """End training at this boundary."""

    def validate(self) -> Validation:
        """Validate the model of this boundary and report the result."""

    def save_checkpoint(self, *, final: bool = False) -> None:
        """Save the state of this boundary in the background, unless it is already saved.

        Args:
            final: this is the state after the end of training.
        """

    def prepare_checkpoints(self) -> None:
        """Allocate memory for the copies of all variables in the background."""

    def wait_for_checkpoint(self) -> None:
        """Wait until every checkpoint is written.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
        """


class TrainingContext(Protocol):
    """The part of the training context that a training uses.

    Attributes:
        core: the framework-free parts.
        settings: how often to report, validate and save.
        seed: the seed of all random operations.
        phases: the finished trainings.
        writer: writes checkpoints in the background.
        code: the submitted code.
        shared_step: the state that the workers exchange with each step; None on one worker.
        validated_at: batches trained in the script at its newest validation; None before the first.
    """

    core: Context
    settings: FitSettings
    seed: int
    phases: list[PhaseRecord]
    writer: CheckpointWriter
    code: CodeArchive
    shared_step: SharedStep | None
    validated_at: int | None

    def phase_finished(self, record: PhaseRecord) -> None:
        """Record a finished training."""
