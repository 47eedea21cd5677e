"""Captures the state of a running `fit` at a batch boundary for the checkpoint writer."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from det_keras.about import __version__
from det_keras.core import Context
from det_keras.core.backend.base import ENGINE_FORMAT
from det_keras.errors import DetError
from det_keras.keras.callbacks.callback import hooks
from det_keras.keras.checkpoint.model_file import ModelFile
from det_keras.keras.checkpoint.random_state import capture_random_state
from det_keras.keras.checkpoint.training_state import TrainingState
from det_keras.keras.engine.parts import FitParts
from det_keras.keras.engine.progress import Progress
from det_keras.keras.engine.settings import FitSettings
from det_keras.keras.engine.team import WorkerStates
from det_keras.keras.history import pack_history

__all__ = ["CodeArchive", "StateCapture", "checkpoint_metadata"]

logger = logging.getLogger(__name__)


class CodeArchive:
    """The script's directory as it was submitted, fetched once and added to each checkpoint.

    Args:
        core: fetches it from the master; a local run has none.
    """

    def __init__(self, core: Context) -> None:
        self._core = core
        self._content: bytes | None = None

    def content(self) -> bytes:
        """Return the code as a gzip-compressed tar archive, empty if there is none."""
        if self._content is None:
            self._content = self._fetch()
        return self._content

    def _fetch(self) -> bytes:
        try:
            return self._core.backend.context_directory()
        except DetError as error:
            logger.warning("The submitted code cannot be put into checkpoints: %s", error)
            return b""


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


def checkpoint_metadata(
    core: Context, settings: FitSettings, progress: Progress, phase_index: int
) -> dict[str, Any]:
    """Return the content of ``metadata.json`` of a checkpoint at the newest boundary.

    Args:
        core: knows the trial.
        settings: the searcher's metric.
        progress: the progress of the training.
        phase_index: number of the training in the script, from 0.
    """
    trial = core.info.trial if core.info is not None else None
    validation = progress.current_validation
    metrics = dict(validation.metrics) if validation is not None else {}
    return {
        "steps_completed": progress.total_batches,
        "epoch": progress.position.epoch,
        "framework": f"tensorflow-{tf.__version__}",
        "keras": keras.__version__,
        "det_keras": __version__,
        "format": ENGINE_FORMAT,
        "phase": phase_index,
        "metrics": metrics,
        "searcher_metric": metrics.get(settings.metric),
        "trial_id": trial.trial_id if trial is not None else None,
        "experiment_id": trial.experiment_id if trial is not None else None,
    }


def _callback_files(callbacks: Sequence[Any]) -> tempfile.TemporaryDirectory[str] | None:
    """Return a directory with the files that callbacks add to this checkpoint, None if no callback has the hook."""
    listeners = hooks(callbacks, "on_checkpoint_end")
    if not listeners:
        return None
    folder = tempfile.TemporaryDirectory(prefix="det-callbacks-", ignore_cleanup_errors=True)
    for listener in listeners:
        listener(folder.name)
    return folder
