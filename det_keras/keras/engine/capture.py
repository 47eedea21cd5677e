"""Takes the state of a running `fit` at a batch boundary and hands it to the writer."""

from __future__ import annotations

import base64
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from det_keras import __version__
from det_keras.core import Context
from det_keras.core.backend.base import ENGINE_FORMAT
from det_keras.errors import DetError
from det_keras.keras.callbacks.callback import hooks
from det_keras.keras.checkpoint.model_file import ModelFile
from det_keras.keras.checkpoint.random_state import capture_random_state
from det_keras.keras.checkpoint.training_state import TrainingState
from det_keras.keras.engine.agreement import WorkerStates
from det_keras.keras.engine.metric_values import plain_value

if TYPE_CHECKING:
    from det_keras.keras.engine.fit import FitRun

__all__ = ["CodeArchive", "StateCapture"]

logger = logging.getLogger(__name__)


class CodeArchive:
    """The script's directory as it was submitted, fetched once and put into each checkpoint.

    Args:
        core: asks the master for it; alone there is none.
    """

    def __init__(self, core: Context) -> None:
        self._core = core
        self._content: bytes | None = None

    def content(self) -> bytes:
        """Return the code as a gzip-compressed tar archive, empty if there is none."""
        if self._core.info is None:
            return b""
        if self._content is None:
            self._content = self._fetch()
        return self._content

    def _fetch(self) -> bytes:
        assert self._core.info is not None
        session: Any = getattr(self._core.backend, "session", None)
        try:
            answer = session.get(f"/api/v1/tasks/{self._core.info.task_id}/context_directory")
        except DetError as error:
            logger.warning("The submitted code cannot be put into checkpoints: %s", error)
            return b""
        return base64.b64decode(answer.get("b64Tgz") or "")


class StateCapture:
    """Turns the state of a `fit` into checkpoints.

    Args:
        run: the `fit`.
        code: what goes into ``code/``.
    """

    def __init__(self, run: FitRun, code: CodeArchive) -> None:
        self._run = run
        self._code = code
        self._model_file: ModelFile | None = None

    def metadata(self) -> dict[str, Any]:
        """Return the content of ``metadata.json``."""
        run = self._run
        trial = run.core.info.trial if run.core.info is not None else None
        validation = run.last_validation
        is_current = validation is not None and validation.batches == run.total_batches
        metrics = dict(validation.metrics) if validation is not None and is_current else {}
        return {
            "steps_completed": run.total_batches,
            "epoch": run.position.epoch,
            "framework": f"tensorflow-{tf.__version__}",
            "keras": keras.__version__,
            "det_keras": __version__,
            "format": ENGINE_FORMAT,
            "phase": run.phase_index,
            "metrics": metrics,
            "searcher_metric": metrics.get(run.settings.metric),
            "trial_id": trial.trial_id if trial is not None else None,
            "experiment_id": trial.experiment_id if trial is not None else None,
        }

    def take(self, *, finished: bool, workers: WorkerStates) -> TrainingState:
        """Copy everything that decides the next step; call it between two batches.

        Args:
            finished: nothing is left to train in this phase.
            workers: what differs between workers.
        """
        run = self._run
        variables = run.variables
        if self._model_file is None:
            self._model_file = ModelFile(run.model, variables.model_variables, run.optimizers)
        self._model_file.refresh()
        rank_files = tempfile.TemporaryDirectory(prefix="det-state-", ignore_cleanup_errors=True)
        state = {
            "phases": [phase.to_dict() for phase in run.context.phases],
            "phase": {"index": run.phase_index, "signature": run.signature(), "finished": finished},
            "position": {
                "epoch": run.position.epoch,
                "step": run.position.step,
                "batches": run.position.batches,
            },
            "workers": run.core.distributed.size,
            "stopped": bool(run.model.stop_training),
            "optimizers": [index for index, one in enumerate(run.optimizers) if one.built],
            "steps_per_epoch": run.source.steps_per_epoch,
            "validations": run.validations,
            "validation_source": run.validation_source_state(),
            "epoch_logs": _plain_logs(run.logs_of_epoch),
            # Where only the end of the data tells that an epoch is over, this may be its last batch.
            "logs": _plain_logs(run.logs_of_boundary) if run.source.steps_per_epoch is None else None,
            "best_metric": run.best_metric,
            "last_validation_batch": run.last_validation_batch,
            "history": run.history.get_state(),
            "random": capture_random_state(run.model),
            "source": run.source.save_state(Path(rank_files.name) / "data"),
        }
        return TrainingState(
            model_file=self._model_file,
            places=self._model_file.places,
            values=[
                value if (shared := workers.values.get(id(one.variable))) is None else tf.constant(shared)
                for one, value in zip(variables.tracked, variables.copy(), strict=True)
            ],
            variables=variables.describe(),
            state=state,
            callback_states=run.callback_states.capture(),
            rank_directory=rank_files,
            callback_files=_callback_files(run.user_callbacks),
            worker_files=workers.files,
            code=self._code,
        )


def _plain_logs(logs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if logs is None:
        return None
    return {
        name: _plain_logs(value) if isinstance(value, Mapping) else plain_value(value)
        for name, value in logs.items()
    }


def _callback_files(callbacks: Sequence[Any]) -> tempfile.TemporaryDirectory[str] | None:
    """Return a directory with what callbacks put into this checkpoint, None where none of them wants to."""
    listeners = hooks(callbacks, "on_checkpoint_end")
    if not listeners:
        return None
    folder = tempfile.TemporaryDirectory(prefix="det-callbacks-", ignore_cleanup_errors=True)
    for listener in listeners:
        listener(folder.name)
    return folder
