"""The state of a loop written by hand: captured at a boundary for a checkpoint, and restored from one."""

from __future__ import annotations

import logging
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from det_keras.core import Context
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.keras.checkpoint.model_file import ModelFile
from det_keras.keras.checkpoint.random_state import capture_streams, restore_streams
from det_keras.keras.checkpoint.training_state import RestoredState, TrainingState
from det_keras.keras.history import FitHistory, pack_history
from det_keras.keras.loops.passes import Pass, SavedPass
from det_keras.keras.loops.tracked import TrackedObjects
from det_keras.keras.loops.values import ReportedValues
from det_keras.keras.loops.workers import LoopWorkers
from det_keras.keras.training.phase import PhaseRecord
from det_keras.keras.training.progress import Progress
from det_keras.keras.training.settings import FitSettings
from det_keras.keras.training.snapshot import CodeArchive, checkpoint_metadata

__all__ = ["LoopCheckpoints", "LoopParts", "LoopState"]

logger = logging.getLogger(__name__)


@dataclass
class LoopParts:
    """The parts of one loop whose state a checkpoint contains.

    Attributes:
        core: the framework-free context.
        settings: the settings from the config.
        phase_index: number of this training in the script, from 0.
        finished_phases: the earlier trainings.
        signature: the JSON values that identify the loop in a later process.
        tracked: the tracked objects.
        progress: the current progress.
        history: the metrics of finished epochs.
        values: what was reported in this epoch.
        passes: the passes over the data by name, in the order in which they were first read.
        current: name of the pass that was read last, in this epoch; None before the first.
        epoch_draws: the states of all that draws random numbers, as they were when the epoch began.
        records: rows that were trained on.
        workers: the workers.
    """

    core: Context
    settings: FitSettings
    phase_index: int
    finished_phases: Sequence[PhaseRecord]
    signature: Mapping[str, Any]
    tracked: TrackedObjects
    progress: Progress
    history: FitHistory
    values: ReportedValues
    passes: dict[str, Pass]
    current: str | None
    epoch_draws: Mapping[str, Any]
    records: int
    workers: LoopWorkers

    def save_passes(self, directory: Path) -> dict[str, Any]:
        """Store the positions of all passes: files in `directory`, and the returned JSON values."""
        return {
            name: data_pass.get_state(directory / str(index), is_current=name == self.current)
            for index, (name, data_pass) in enumerate(self.passes.items())
        }

    def draws(self) -> dict[str, Any]:
        """Return the states of all that draws random numbers in this process, as JSON values."""
        return {"streams": capture_streams(), "tracked": self.tracked.draws()}

    def objects(self) -> dict[str, Any]:
        """Return the state of the tracked objects in memory, for `LoopState.assign`."""
        return {
            "values": self.tracked.variables().copy(),
            "generators": self.tracked.generator_states(),
            "pickles": {name: pickle.loads(dump()) for name, dump in self.tracked.pickles().items()},
        }


class LoopCheckpoints:
    """Saves checkpoints of a loop in the background.

    Args:
        parts: the parts of the loop.
        writer: writes the files.
        code: the content of ``code/``.
    """

    def __init__(self, parts: LoopParts, writer: CheckpointWriter, code: CodeArchive) -> None:
        self._parts = parts
        self._writer = writer
        self._code = code
        self._files: dict[str, ModelFile] = {}
        self._last_saved: tuple[int, int] | None = None

    def save(self) -> None:
        """Save the state of this boundary, unless it is already saved; all workers must make this call."""
        parts, position = self._parts, self._parts.progress.position
        if self._last_saved == (position.epoch, position.batches):
            return
        self._last_saved = (position.epoch, position.batches)
        parts.progress.last_checkpoint_batch = position.batches
        own = parts.workers.gather_state(parts.save_passes, parts.epoch_draws)
        if parts.core.distributed.is_chief:
            metadata = checkpoint_metadata(parts.core, parts.settings, parts.progress, parts.phase_index)
            self._writer.submit(metadata, self._capture(own.files, own.values), _log_saved)

    def is_saved(self) -> None:
        """Record that the state of this boundary is in a checkpoint: it was restored from one."""
        position = self._parts.progress.position
        self._last_saved = (position.epoch, position.batches)

    def prepare(self) -> None:
        """Allocate memory for the copies of all variables in the background; called after the first batch."""
        # Also a check of the tracked objects: a loop that cannot be resumed ends at its first batch.
        self._parts.tracked.build_configs()
        if self._parts.core.distributed.is_chief:
            self._writer.prepare(self._parts.tracked.variables().size_bytes)

    def wait(self) -> None:
        """Wait until every checkpoint is written.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
        """
        self._parts.core.distributed.on_chief(self._writer.wait)

    def _capture(self, files: Mapping[str, bytes], shared: Mapping[int, Any]) -> TrainingState:
        parts = self._parts
        variables = parts.tracked.variables()
        first, further = self._model_files([item.variable for item in variables.tracked])
        rank_files = tempfile.TemporaryDirectory(prefix="det-state-", ignore_cleanup_errors=True)
        state = {
            **parts.progress.get_state(with_logs=False),
            "phases": [phase.to_dict() for phase in parts.finished_phases],
            "phase": {"index": parts.phase_index, "signature": parts.signature, "finished": False},
            "workers": parts.core.distributed.size,
            "history": pack_history(parts.history.get_state()),
            "random": capture_streams(),
            "loop": {
                "objects": parts.tracked.build_configs(),
                "generators": parts.tracked.generator_states(),
                "passes": parts.save_passes(Path(rank_files.name) / "data"),
                "epoch_draws": parts.epoch_draws if parts.progress.position.step else None,
                "reported": parts.values.get_state(parts.tracked.all_metrics()),
                "trainable": parts.tracked.trainable_flags(),
                "records": parts.records,
            },
        }
        return TrainingState(
            model_file=first,
            places={} if first is None else first.places,
            values=[
                value if (common := shared.get(id(item.variable))) is None else tf.constant(common)
                for item, value in zip(variables.tracked, variables.copy(), strict=True)
            ],
            variables=variables.describe(),
            state=state,
            callback_states=parts.tracked.pickles(),
            rank_directory=rank_files,
            worker_files=files,
            code=self._code,
            further_models=further,
        )

    def _model_files(self, variables: Sequence[Any]) -> tuple[ModelFile | None, dict[str, ModelFile]]:
        """Return the file of the first tracked model, and those of the others by name in the checkpoint."""
        for name, layer in self._parts.tracked.layers.items():
            if isinstance(layer, keras.Model) and layer.variables:
                known = self._files.get(name)
                if known is None or not known.has_variables(variables):
                    optimizers = self._parts.tracked.optimizers.values()
                    self._files[name] = ModelFile(layer, variables, optimizers)
                self._files[name] = self._files[name].refreshed()
        names = list(self._files)
        first = self._files[names[0]] if names else None
        return first, {f"{name}.keras": self._files[name] for name in names[1:]}


class LoopState:
    """The state of a boundary, to restore: from a checkpoint, or from memory where a loop continues in the same epoch.

    Args:
        parts: the parts of the loop.
        restored: the checkpoint; None for the state of the parts as they are now.
    """

    def __init__(self, parts: LoopParts, restored: RestoredState | None = None) -> None:
        self._parts = parts
        self._restored = restored
        self.position = parts.progress.position
        self._memory: Mapping[str, Any] = {}
        if restored is None:
            streams, reported = capture_streams(), parts.values.get_state(parts.tracked.all_metrics())
            self._memory = {**parts.objects(), "streams": streams, "reported": reported}

    def assign(self, *, draws_of_epoch: bool, without: frozenset[str] = frozenset()) -> None:
        """Restore tracked objects, reported values and random streams; the streams last.

        Args:
            draws_of_epoch: restore what draws random numbers as it was when the epoch began, for the part of its body
                before the batches.
            without: names of streams that are not restored.
        """
        if self._restored is None:
            self._assign_from_memory(draws_of_epoch=draws_of_epoch)
            return
        parts, state, loop = self._parts, self._restored.state, self._restored.state["loop"]
        parts.tracked.variables().assign(self._restored.values())
        parts.tracked.load_pickles(self._restored.pickles())
        parts.tracked.assign_generators(loop["generators"])
        document, own = parts.workers.own_document(state, self._restored.folder)
        parts.workers.restore_own(document, own)
        parts.tracked.assign_trainable(loop["trainable"])
        parts.values.load_state(loop["reported"], parts.tracked.all_metrics())
        if draws_of_epoch:
            self._assign_draws(self.epoch_draws)
        else:
            parts.workers.restore_streams(state["random"], document, without=without)

    @property
    def epoch_draws(self) -> Mapping[str, Any]:
        """The states of all that draws random numbers, as they were when the epoch of the position began."""
        if self._restored is None:
            return self._parts.epoch_draws
        document, _ = self._parts.workers.own_document(self._restored.state, self._restored.folder)
        own = None if document is None else document["epoch_draws"]
        draws: Mapping[str, Any] = own or self._restored.state["loop"]["epoch_draws"]
        return draws

    def _assign_draws(self, draws: Mapping[str, Any]) -> None:
        self._parts.tracked.assign_draws(draws["tracked"])
        restore_streams(draws["streams"])

    @property
    def is_from_memory(self) -> bool:
        """Whether the state is one of this process."""
        return self._restored is None

    def pass_state(self, key: str) -> SavedPass | None:
        """Return the state of a pass in the checkpoint; None if it has none."""
        assert self._restored is not None
        state = self._restored.state
        passes: Mapping[str, Any] = state["loop"]["passes"]
        if key not in passes:
            return None
        found = passes[key]
        document, folder = self._parts.workers.own_document(state, self._restored.folder)
        if document is not None:
            found = document.get("passes", passes)[key]
        elif state["workers"] != self._parts.core.distributed.size:
            # The data is divided differently between the workers now: it is read again up to the position.
            kept = {name: found["source"][name] for name in ("dataset", "ended") if name in found["source"]}
            found = {**found, "source": kept}
        return SavedPass(found, folder / "data" / str(list(passes).index(key)))

    def _assign_from_memory(self, *, draws_of_epoch: bool) -> None:
        parts, memory = self._parts, self._memory
        parts.tracked.variables().assign(memory["values"])
        parts.tracked.load_pickles(memory["pickles"])
        parts.tracked.assign_generators(memory["generators"])
        parts.values.load_state(memory["reported"], parts.tracked.all_metrics())
        if draws_of_epoch:
            self._assign_draws(parts.epoch_draws)
        else:
            restore_streams(memory["streams"])


def _log_saved(uuid: str) -> None:
    logger.debug("Checkpoint %s is saved.", uuid)
