"""Reports the layers of the trained model once, as soon as it is built."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from det_keras.keras.model_description import describe_models, is_complete
from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run

logger = logging.getLogger(__name__)


class ModelCallback(BoundaryCallback):
    """Reports the model at the begin of training, or at the first boundary at which it is built.

    It requests no boundary of its own: which batches are boundaries stays as it is.

    Args:
        models: returns the models that are trained.
    """

    def __init__(self, models: Callable[[], Sequence[Any]]) -> None:
        self._models = models
        self._is_done = False

    def on_begin(self, run: Run) -> None:
        self._report(run, is_complete)

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        # Layers that no batch has built are not used.
        self._report(run, lambda model: bool(model.built))

    def _report(self, run: Run, is_ready: Callable[[Any], bool]) -> None:
        if self._is_done:
            return
        try:
            models = self._models()
            if not models or not run.core.records_provenance:
                self._is_done = True
            elif all(is_ready(model) for model in models):
                self._is_done = True
                run.core.report_model(describe_models(models))
        except Exception as error:
            # What a layer of the script raises when it is read must not end the training.
            self._is_done = True
            logger.info("The layers of the model cannot be recorded: %s: %s", type(error).__name__, error)
