"""Saves a training between two batches: its parts, the metadata and the submitted code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from det_keras.about import __version__
from det_keras.config import Length
from det_keras.core import Context
from det_keras.core.backend.base import ENGINE_FORMAT
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.errors import DetError
from det_keras.keras.checkpoint.training_state import TrainingState
from det_keras.keras.training.parts import Part, WeightsPart, captured, own_files
from det_keras.keras.training.phase import PhaseRecord, Raised
from det_keras.keras.training.progress import Progress
from det_keras.keras.training.workers import Workers, WorkerStates
from det_keras.scratch import Scratch

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


class Snapshots:
    """Saves the state of a training in the background, each boundary at most once.

    Args:
        core: the framework-free context.
        writer: writes the files.
        code: the content of ``code/``.
        phases: the earlier trainings of the script.
        signature: returns the values that identify this training in a later process.
        metric: name of the searcher's metric.
        length: the length in the config; None if it has none.
        progress: the progress of the training.
        weights: the part with the variables.
        parts: all parts, in the order in which they are restored.
        workers: the workers of the training.
    """

    def __init__(
        self,
        core: Context,
        writer: CheckpointWriter,
        code: CodeArchive,
        *,
        phases: Sequence[PhaseRecord],
        signature: Callable[[], Mapping[str, Any]],
        metric: str,
        length: Length | None,
        progress: Progress,
        weights: WeightsPart,
        parts: Sequence[Part],
        workers: Workers,
    ) -> None:
        self._core = core
        self._writer = writer
        self._code = code
        # The list grows when this training ends.
        self._phases = phases
        self._index = len(phases)
        self._signature = signature
        self._metric = metric
        self._length = length
        self._progress = progress
        self._weights = weights
        self._parts = parts
        self._workers = workers
        self._saved_at: tuple[int, int] | None = None
        self._is_end_saved = False

    def save(self, *, is_end: bool, has_changed: bool) -> None:
        """Save the state of this boundary, unless it is already saved; all workers must make this call.

        Args:
            is_end: training has ended with this state, and cannot continue from it.
            has_changed: the state of this boundary may have changed since it was saved.
        """
        place = self._place()
        if self._saved_at == place and (self._is_end_saved or not has_changed):
            return
        self._saved_at, self._is_end_saved = place, is_end
        states = self._workers.gather_state(self._parts)
        if self._core.distributed.is_chief:
            self._submit(self._capture(states, is_end=is_end))

    def capture_left(self) -> Callable[[Raised | None], None]:
        """Return what saves the state in which the script leaves training, with the exceptions of all workers, if any.

        This call exchanges nothing: the exception may have left it on one worker only, and the others wait for this one
        elsewhere. All workers must call what it returns. What is shared is the chief's, with which the next training
        begins on all workers.
        """
        is_single = self._workers.is_single
        own = {} if is_single else own_files(self._parts)
        taken = self._capture(WorkerStates(), is_end=True) if self._core.distributed.is_chief else None

        def save(raised: Raised | None) -> None:
            files = {} if is_single else self._workers.gather_files(own)
            if taken is not None:
                taken.state = {**taken.state, "phase": {**taken.state["phase"], "raised": raised}}
                taken.worker_files = files
                self._submit(taken)

        return save

    def _capture(self, states: WorkerStates, *, is_end: bool) -> TrainingState:
        """Return the state as it is now; only the chief has it.

        Args:
            states: the state that differs between workers.
            is_end: training has ended with this state, and cannot continue from it.
        """
        # The pickles of a part and its files belong to one moment.
        pickles = {name: dump for part in self._parts for name, dump in part.pickles().items()}
        files = [folder for part in self._parts if (folder := part.files()) is not None]
        rank_files = Scratch("state")
        variables = self._weights.variables()
        further = [item for part in self._parts for item in part.further_variables()]
        models = self._weights.model_files(variables)
        names = list(models)
        first = models[names[0]] if names else None
        state = {
            **captured(self._parts, Path(rank_files.name)),
            "phases": [phase.to_dict() for phase in self._phases[: self._index]],
            "phase": {
                "index": self._index,
                "signature": self._signature(),
                "finished": is_end,
                "length": None if self._length is None else self._length.to_dict(),
                "raised": None,
            },
            "workers": self._core.distributed.size,
        }
        return TrainingState(
            model_file=first,
            places={} if first is None else first.places,
            values=[
                value if (shared := states.values.get(id(item.variable))) is None else tf.constant(shared)
                for item, value in zip(variables.tracked, variables.copy(), strict=True)
            ]
            + [item.variable.value for item in further],
            variables=[*variables.describe(), *(item.describe() for item in further)],
            state=state,
            callback_states=pickles,
            rank_directory=rank_files,
            callback_files=files[0] if files else None,
            worker_files=states.files,
            code=self._code,
            further_models={f"{name}.keras": models[name] for name in names[1:]},
        )

    def _submit(self, taken: TrainingState) -> None:
        self._writer.submit(self._metadata(), taken, _log_saved)

    def note_saved(self) -> None:
        """Record that the state of this boundary is in a checkpoint: it was restored from one."""
        self._saved_at = self._place()

    def prepare(self) -> None:
        """Allocate memory for the copies of all variables in the background; called after the first batch."""
        if self._core.distributed.is_chief:
            self._writer.prepare(self._weights.variables().size_bytes)

    def wait(self) -> None:
        """Wait until every checkpoint is written.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
        """
        self._core.distributed.on_chief(self._writer.wait)

    def _place(self) -> tuple[int, int]:
        position = self._progress.position
        return position.epoch, position.batches

    def _metadata(self) -> dict[str, Any]:
        """Return the content of ``metadata.json``."""
        trial = self._core.info.trial if self._core.info is not None else None
        validation = self._progress.current_validation
        metrics = dict(validation.metrics) if validation is not None else {}
        return {
            "steps_completed": self._progress.total_batches,
            "epoch": self._progress.position.epoch,
            "framework": f"tensorflow-{tf.__version__}",
            "keras": keras.__version__,
            "det_keras": __version__,
            "format": ENGINE_FORMAT,
            "phase": self._index,
            "metrics": metrics,
            "searcher_metric": metrics.get(self._metric),
            "trial_id": trial.trial_id if trial is not None else None,
            "experiment_id": trial.experiment_id if trial is not None else None,
        }


def _log_saved(uuid: str) -> None:
    logger.debug("Checkpoint %s is saved.", uuid)
