"""The parts of one `fit` that a checkpoint is made of, and that it is restored into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.core import Context
from det_keras.keras.checkpoint.trained_model import TrainedModel
from det_keras.keras.data import DataSource
from det_keras.keras.engine.agreement import Team
from det_keras.keras.engine.callback_state import CallbackStates
from det_keras.keras.engine.phase import PhaseRecord
from det_keras.keras.engine.progress import Progress
from det_keras.keras.engine.settings import FitSettings
from det_keras.keras.engine.validations import Validations
from det_keras.keras.history import FitHistory

__all__ = ["FitParts"]


@dataclass(frozen=True)
class FitParts:
    """What one `fit` consists of.

    Attributes:
        core: the framework-free context.
        settings: from the config.
        phase_index: which `fit` of the script it is, from 0.
        finished_phases: those before it.
        signature: returns by what the phase is known in a later process, as JSON values, once the model is built.
        trained: the model, its optimizers and variables.
        source: the training data.
        validations: of the model.
        user_callbacks: as the script gave them.
        callback_states: their states.
        history: what `fit` returns.
        progress: how far training has come.
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
