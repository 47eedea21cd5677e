"""Saves the checkpoints of a `fit`, each boundary at most once."""

from __future__ import annotations

import logging

from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.keras.checkpoint.random_ops import warn_of_stateful_random_ops
from det_keras.keras.fit.callback_list import SeamlessCallbackList
from det_keras.keras.fit.callback_state import changes_weights_at_end
from det_keras.keras.fit.capture import StateCapture
from det_keras.keras.fit.parts import FitParts

__all__ = ["Checkpointer"]

logger = logging.getLogger(__name__)


class Checkpointer:
    """Saves checkpoints in the background.

    Args:
        parts: the parts of the `fit`.
        writer: writes the files in the background.
        capture: copies the state.
        callbacks: the list that calls the user's callbacks, some of them in threads.
    """

    def __init__(
        self,
        parts: FitParts,
        writer: CheckpointWriter,
        capture: StateCapture,
        callbacks: SeamlessCallbackList,
    ) -> None:
        self._parts = parts
        self._writer = writer
        self._capture = capture
        self._callbacks = callbacks
        self._last_saved: tuple[int, bool] | None = None

    def save(self, *, final: bool) -> None:
        """Save the state of this boundary, unless it is already saved.

        Args:
            final: this is the state after the end of training.
        """
        progress = self._parts.progress
        batches, was_final = self._last_saved or (-1, False)
        is_saved = was_final or not (final and self._changed_after_training())
        if batches == progress.position.batches and is_saved:
            return
        self._last_saved = (progress.position.batches, final)
        progress.last_checkpoint_batch = progress.position.batches
        # Callbacks that Keras runs in threads may still be handling events before this boundary. Their state must
        # include these events, so wait for them before the state is captured.
        self._callbacks.flush()
        workers = self._parts.team.gather_state()
        if self._parts.core.distributed.is_chief:
            state = self._capture.take(finished=final, workers=workers)
            self._writer.submit(self._capture.metadata(), state, _log_saved)

    def prepare(self) -> None:
        """Allocate memory for the copies of all variables in the background; called after the first step."""
        if self._parts.core.distributed.is_chief:
            warn_of_stateful_random_ops(self._parts.trained.model)
            self._writer.prepare(self._parts.trained.variables.size_bytes)

    def wait(self) -> None:
        """Wait until every checkpoint is written.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
        """
        self._parts.core.distributed.on_chief(self._writer.wait)

    def _changed_after_training(self) -> bool:
        """Return whether EMA or a callback's ``on_train_end`` may have changed the weights after the last batch."""
        if getattr(self._parts.trained.model.optimizer, "use_ema", False):
            return True
        return any(changes_weights_at_end(callback) for callback in self._parts.user_callbacks)


def _log_saved(uuid: str) -> None:
    logger.debug("Checkpoint %s is saved.", uuid)
