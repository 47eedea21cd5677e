"""Restores the state of a checkpoint into a running `fit`."""

from __future__ import annotations

from det_keras.keras.fit.parts import FitParts
from det_keras.keras.training.phase import check_signature
from det_keras.keras.training.position import Position
from det_keras.keras.training.resume import ResumePoint

__all__ = ["ResumePlan"]


class ResumePlan:
    """Restores the interrupted phase.

    The position is set before training begins. All other state is restored after the user's callbacks received
    ``on_train_begin`` and, on a resume within an epoch, ``on_epoch_begin``: these hooks may reset their state.

    Args:
        point: a checkpoint of this phase.
        parts: the parts whose state is restored.
    """

    def __init__(self, point: ResumePoint, parts: FitParts) -> None:
        self._point = point
        self._parts = parts
        state = point.restored.state
        self.position = Position(**state["position"])
        self.is_finished: bool = state["phase"]["finished"]
        self.was_stopped: bool = state["stopped"]

    @property
    def is_in_mid_epoch(self) -> bool:
        """Whether the checkpoint was taken inside an epoch."""
        return self.position.step > 0

    def begin(self) -> None:
        """Build the model's variables, compare the phase and the variables with the checkpoint, and set the position.

        Raises:
            ModelMismatchError: the script or the model changed.
        """
        parts, state = self._parts, self._point.restored.state
        parts.trained.build(parts.source.element_spec)
        check_signature(parts.phase_index, state["phase"]["signature"], parts.signature())
        parts.trained.variables.check(self._point.restored.variables)
        progress = parts.progress
        progress.position = self.position
        progress.last_validation_batch = state["last_validation_batch"]
        progress.is_resumed = progress.awaits_state = True

    def restore(self) -> None:
        """Restore everything, random states last; a second call does nothing."""
        parts, restored = self._parts, self._point.restored
        progress, state = parts.progress, restored.state
        if not progress.awaits_state:
            return
        progress.awaits_state = False
        source_state, source_files = parts.team.source_state(state, restored.folder)
        parts.source.restore_passes(source_state, self.position.epoch)
        parts.validations.skip(state["validations"], state.get("validation_source") or {})
        drawn_by_data = parts.source.restore_state(
            source_state,
            source_files,
            self.position.epoch,
            self.position.step,
            epochs_left=progress.epochs_left(parts.source.steps_per_epoch),
        )
        parts.trained.variables.assign(restored.values())
        parts.history.load_state(state["history"])
        progress.load_state(state)
        parts.callback_states.restore(restored.pickles())
        # Reading the data again up to the position has already advanced the streams in `drawn_by_data`.
        parts.team.restore(state, restored.folder, without=drawn_by_data)
