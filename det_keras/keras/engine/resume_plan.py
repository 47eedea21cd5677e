"""Puts the state of a checkpoint back into a running `fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_keras.keras.engine.injected.base import InjectedCallback
from det_keras.keras.engine.phase import check_signature
from det_keras.keras.engine.position import Position
from det_keras.keras.engine.resume import ResumePoint

if TYPE_CHECKING:
    from det_keras.keras.engine.fit import FitRun

__all__ = ["RestoreCallback"]


class RestoreCallback(InjectedCallback):
    """Restores the interrupted phase.

    The position is known before training begins; the rest is put back once the user's callbacks have had
    their ``on_train_begin``, and in mid-epoch their ``on_epoch_begin``, which may reset what is restored.

    Args:
        point: the checkpoint, of this phase.
    """

    def __init__(self, point: ResumePoint) -> None:
        self._point = point
        self.is_pending = True
        state = point.restored.state
        self.position = Position(**state["position"])
        self.is_finished: bool = state["phase"]["finished"]
        self.was_stopped: bool = state["stopped"]
        self.last_validation_batch: int = state["last_validation_batch"]

    @property
    def is_in_mid_epoch(self) -> bool:
        """Whether the first epoch to train was begun before."""
        return self.position.step > 0

    def check(self, run: FitRun) -> None:
        """Build the model's variables and compare phase and variables with the checkpoint's.

        Raises:
            ModelMismatchError: the script or the model changed.
        """
        state = self._point.restored.state
        run.build()
        check_signature(run.phase_index, state["phase"]["signature"], run.signature())
        run.variables.check(self._point.restored.variables)

    def restore(self, run: FitRun) -> None:
        """Put everything back, random states last; a second call does nothing."""
        if not self.is_pending:
            return
        self.is_pending = False
        restored = self._point.restored
        state = restored.state
        source_state, source_files = run.team.source_state(state, restored.folder)
        run.source.restore_passes(source_state, self.position.epoch)
        run.skip_validations(state["validations"], state.get("validation_source") or {})
        drawn_by_data = run.source.restore_state(
            source_state,
            source_files,
            self.position.epoch,
            self.position.step,
            epochs_left=run.epochs_left,
        )
        run.logs_of_boundary, run.logs_of_epoch = state.get("logs") or {}, state.get("epoch_logs")
        run.variables.assign(restored.values())
        run.history.load_state(state["history"])
        run.best_metric = state["best_metric"]
        run.last_validation_batch = self.last_validation_batch
        if state["validations"]:
            run.context.validated_at = run.batches_before + self.last_validation_batch
        run.last_checkpoint_batch = self.position.batches
        run.callback_states.restore(restored.pickles())
        run.team.restore(state, restored.folder, without=drawn_by_data)
