"""Captures the state of a running `fit` at a batch boundary for the checkpoint writer."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_keras.keras.callbacks.callback import hooks
from det_keras.keras.checkpoint.model_file import ModelFile
from det_keras.keras.checkpoint.random_state import capture_random_state
from det_keras.keras.checkpoint.training_state import TrainingState
from det_keras.keras.fit.parts import FitParts
from det_keras.keras.fit.team import WorkerStates
from det_keras.keras.history import pack_history
from det_keras.keras.training.snapshot import CodeArchive, checkpoint_metadata

__all__ = ["StateCapture"]

logger = logging.getLogger(__name__)


class StateCapture:
    """Turns the state of a `fit` into checkpoints.

    Args:
        parts: the parts of the `fit`.
        code: the content of ``code/``.
    """

    def __init__(self, parts: FitParts, code: CodeArchive) -> None:
        self._parts = parts
        self._code = code
        self._model_file: ModelFile | None = None

    def metadata(self) -> dict[str, Any]:
        """Return the content of ``metadata.json``."""
        parts = self._parts
        return checkpoint_metadata(parts.core, parts.settings, parts.progress, parts.phase_index)

    def take(self, *, finished: bool, workers: WorkerStates) -> TrainingState:
        """Copy all state that the next step depends on; call it between two batches.

        Args:
            finished: this phase is trained to its end.
            workers: the state that differs between workers.
        """
        parts, trained, source = self._parts, self._parts.trained, self._parts.source
        variables = trained.variables
        if self._model_file is None:
            self._model_file = ModelFile(trained.model, variables.model_variables, trained.optimizers)
        self._model_file = self._model_file.refreshed()
        rank_files = tempfile.TemporaryDirectory(prefix="det-state-", ignore_cleanup_errors=True)
        # If the length of an epoch is unknown, this may be its last batch, and a resumed process needs the metrics
        # to end the epoch.
        progress = parts.progress.get_state(with_logs=source.steps_per_epoch is None)
        state = {
            **progress,
            "phases": [phase.to_dict() for phase in parts.finished_phases],
            "phase": {"index": parts.phase_index, "signature": parts.signature(), "finished": finished},
            "workers": parts.core.distributed.size,
            "stopped": bool(trained.model.stop_training),
            "optimizers": [index for index, optimizer in enumerate(trained.optimizers) if optimizer.built],
            "steps_per_epoch": source.steps_per_epoch,
            "validation_source": parts.validations.source_state(),
            "history": pack_history(parts.history.get_state()),
            "random": capture_random_state(trained.model),
            "source": source.save_state(Path(rank_files.name) / "data"),
        }
        return TrainingState(
            model_file=self._model_file,
            places=self._model_file.places,
            values=[
                value if (shared := workers.values.get(id(tracked.variable))) is None else tf.constant(shared)
                for tracked, value in zip(variables.tracked, variables.copy(), strict=True)
            ],
            variables=variables.describe(),
            state=state,
            callback_states=parts.callback_states.capture(),
            rank_directory=rank_files,
            callback_files=_callback_files(parts.user_callbacks),
            worker_files=workers.files,
            code=self._code,
        )


def _callback_files(callbacks: Sequence[Any]) -> tempfile.TemporaryDirectory[str] | None:
    """Return a directory with the files that callbacks add to this checkpoint, None if no callback has the hook."""
    listeners = hooks(callbacks, "on_checkpoint_end")
    if not listeners:
        return None
    folder = tempfile.TemporaryDirectory(prefix="det-callbacks-", ignore_cleanup_errors=True)
    for listener in listeners:
        listener(folder.name)
    return folder
