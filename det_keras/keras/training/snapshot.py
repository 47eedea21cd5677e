"""What every checkpoint of a training contains besides its state: its metadata and the submitted code."""

from __future__ import annotations

import logging
from typing import Any

import keras
import tensorflow as tf

from det_keras.about import __version__
from det_keras.core import Context
from det_keras.core.backend.base import ENGINE_FORMAT
from det_keras.errors import DetError
from det_keras.keras.training.progress import Progress
from det_keras.keras.training.settings import FitSettings

__all__ = ["CodeArchive", "checkpoint_metadata"]

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
