"""The parts of one `fit` whose state a checkpoint contains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.core import Context
from det_keras.keras.checkpoint.trained_model import TrainedModel
from det_keras.keras.data import DataSource
from det_keras.keras.fit.callback_state import CallbackStates
from det_keras.keras.fit.team import Team
from det_keras.keras.fit.validations import Validations
from det_keras.keras.history import FitHistory
from det_keras.keras.training.phase import PhaseRecord
from det_keras.keras.training.progress import Progress
from det_keras.keras.training.settings import FitSettings

__all__ = ["FitParts"]


@dataclass(frozen=True)
class FitParts:
    """The parts of one `fit`.

    Attributes:
        core: the framework-free context.
        settings: the settings from the config.
        phase_index: number of this `fit` in the script, from 0.
        finished_phases: the earlier phases.
        signature: returns the JSON values that identify the phase in a later process; the model must be built.
        trained: the model, its optimizers and variables.
        source: the training data.
        validations: runs the validations of the model.
        user_callbacks: the callbacks that the script passed.
        callback_states: the states of these callbacks.
        history: the history that `fit` returns.
        progress: the current progress of training.
        team: the workers.
    """

    core: Context
    settings: FitSettings
    phase_index: int
    finished_phases: Sequence[PhaseRecord]
    signature: Callable[[], dict[str, Any]]
    trained: TrainedModel
    source: DataSource
    validations: Validations
    user_callbacks: Sequence[Any]
    callback_states: CallbackStates
    history: FitHistory
    progress: Progress
    team: Team
