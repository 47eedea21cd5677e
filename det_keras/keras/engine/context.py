"""The interface of the training context for a training, whether it is a `fit` or a loop written by hand."""

from __future__ import annotations

from typing import Protocol

from det_keras.core import Context
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.engine.capture import CodeArchive
from det_keras.keras.engine.phase import PhaseRecord
from det_keras.keras.engine.settings import FitSettings

__all__ = ["TrainingContext"]


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
