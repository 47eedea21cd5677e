"""A loop written by hand as a training: its parts, and what boundary callbacks ask of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import keras

from det_keras.config import Length, Unit
from det_keras.keras.checkpoint.reached import ReachedState
from det_keras.keras.loops.state import (
    DrawsPart,
    LoopFilesPart,
    LoopState,
    PassesPart,
    ReportedPart,
    TrackedPart,
)
from det_keras.keras.loops.tracked import TrackedObjects
from det_keras.keras.loops.values import ReportedValues
from det_keras.keras.loops.workers import LoopWorkers
from det_keras.keras.private_api.steps import traced_names
from det_keras.keras.random_ops.unsaved import warn_of_random_functions
from det_keras.keras.training.parts import HistoryPart, ProgressPart, ReachedPart, SavedState, WeightsPart
from det_keras.keras.training.phase import Raised, own_error_first, phase_signature
from det_keras.keras.training.training import Training, TrainingContext
from det_keras.keras.training.written_files import WrittenFiles


class LoopRun(Training):
    """A loop over epochs, from the point of view of the boundary callbacks; `Loop` is that of the script.

    Args:
        context: the training context.
        tracked: the objects that it changes.
        variables: what the variables of the script refer to, by name.
        epochs: its length in a local run.
        on_nan: what to do if the reported ``loss`` is not finite, as in `fit`.

    Attributes:
        tracked: the tracked objects.
        workers: the workers.
        values: what was reported in this epoch.
        data: the passes over the data.
        draws: what draws random numbers.
        reached: what the loop reaches through the variables of the script and the tracked objects.
        files: the files that it writes.
        is_after_pass: whether the data of this epoch was read to its end, and nothing was begun since.
    """

    def __init__(
        self,
        context: TrainingContext,
        tracked: TrackedObjects,
        variables: Mapping[str, Any],
        *,
        epochs: int,
        on_nan: str,
    ) -> None:
        super().__init__(context)
        # Keras puts the history into the model as well, and a loop may have any number of models.
        self.history.set_model(SimpleNamespace())
        self.history.on_train_begin()
        self.aim_at(self.settings.first_target(epochs, 0, None, self.progress.batches_before))
        has_own_length = self.core.info is None or self.settings.max_length is None
        self._epochs = epochs if has_own_length else None
        self.tracked = tracked
        workers = self.core.distributed
        self.workers = LoopWorkers(workers, context.shared_step, tracked, self.progress)
        self.values = ReportedValues()
        self.data = PassesPart(is_chief=workers.is_chief)
        self.is_after_pass = False
        self._traced_before: Collection[str] = ()
        self._save_left: Callable[[Raised | None], None] | None = None
        self._save_at_end: Callable[[Raised | None], None] | None = None
        self._weights = WeightsPart(tracked.variables, tracked.layers, tracked.optimizers.values)
        self.reached = ReachedPart(
            ReachedState(
                {**variables, **tracked.others},
                without=tracked.pickled,
                known=lambda: [item.variable for item in tracked.variables().tracked],
                reads_traces=workers.is_alone,
            ),
            has_hooks=False,
        )
        self.files = WrittenFiles(is_active=workers.is_chief)
        self.draws = DrawsPart(tracked, self.reached, self.progress, is_chief=workers.is_chief)
        self._objects = [
            LoopFilesPart(self.files),
            self.reached,
            TrackedPart(tracked, self.workers),
            ReportedPart(self.values, tracked, is_chief=workers.is_chief),
        ]
        parts = [
            self._weights,
            HistoryPart(self.history),
            ProgressPart(self.progress, lambda: False),
            self.data,
            *self._objects,
            self.draws,
        ]
        self._connect(self.workers, self._weights, parts, on_nan=on_nan)

    @property
    def global_batch_size(self) -> int | None:
        """Samples per update; None if neither the data nor the hyperparameters define it."""
        sizes = (each.source.batch_size for each in self.data.trained())
        return next((size for size in sizes if size), self.settings.global_batch_size)

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch that are trained on; None while it is unknown."""
        steps = [each.steps for each in self.data.trained()]
        return sum(number or 0 for number in steps) if steps and None not in steps else None

    def trainable_variables(self) -> Sequence[Any]:
        """Return the variables that gradients change, as far as they exist."""
        return self.tracked.trainable_variables()

    def optimizers(self) -> Sequence[Any]:
        """Return the optimizers that change them."""
        return list(self.tracked.optimizers.values())

    def models(self) -> Sequence[Any]:
        """Return the models that are trained, whose layers are reported."""
        return [layer for layer in self.tracked.layers.values() if isinstance(layer, keras.Model)]

    @property
    def is_boundary_due(self) -> bool:
        """Whether a boundary callback acts after the newest batch."""
        return (self.workers.is_single and self.is_asked_to_stop) or self.boundaries.is_due

    def signature(self) -> Mapping[str, Any]:
        """Return the JSON values that identify the loop in a later process."""
        return phase_signature(
            epochs=self._epochs,
            initial_epoch=0,
            data={"kind": "loop", "tracked objects": self.tracked.kinds()},
            trainable=[],
        )

    def counters(self) -> dict[str, int]:
        """Return the counts of trained batches, epochs and records, which are added to every report."""
        counters = super().counters()
        return {**counters, "epochs": counters["epochs"] + int(self.is_after_pass)}

    def prepare_checkpoints(self) -> None:
        """Check what is tracked, and allocate memory for the copies of all variables."""
        # A loop that cannot be resumed ends at its first batch.
        self.tracked.build_configs()
        self.reached.extend()
        super().prepare_checkpoints()
        if self.core.distributed.is_chief:
            warn_of_random_functions(self._traced_before)

    def leave(self) -> None:
        """Keep the state as it is now: what the script does from here on is not of the loop."""
        self.files.leave()
        with own_error_first():
            self._save_left = self._capture_left()

    def end_left(self, error: BaseException | None) -> None:
        """End a loop that the script has left, because its next training begins.

        Args:
            error: the exception that left it; None for a `break`.
        """
        save, self._save_left = self._save_left, None
        if error is None:
            self._save_at_end = save
            self.end()
            self.finish({})
        elif save is not None:
            self._record_left(error, {}, save)

    def save_checkpoint(self, *, final: bool = False) -> None:
        """Save the state of this boundary in the background; of a loop that was left, that of the leaving."""
        save, self._save_at_end = self._save_at_end, None
        if save is None:
            # How far a generator of the script was read is noted at the end, after the checkpoint of the last batch.
            is_end = final and self.data.reads_generators
            self._save(is_end=is_end, has_changed=is_end)
        else:
            save(None)

    def results(self) -> dict[str, Any]:
        """Return the metrics that were reported in this epoch, over all workers."""
        return self.values.results(self.workers.add_up)

    def before_tracing(self) -> None:
        """Record what is traced, so that random functions of the first batch are found; later calls do nothing."""
        if not self._traced_before:
            self._traced_before = traced_names()

    def resume_at(self, state: Mapping[str, Any]) -> None:
        """Set the position of a checkpoint, and what is known of it before the script asks for its batches."""
        super().resume_at(state)
        self.progress.load_state(state)
        self.history.load_state(state["history"])
        self.data.records = state["loop"]["records"]
        self._snapshots.note_saved()

    def state(self, found: SavedState | None = None) -> LoopState:
        """Return the state of the objects, to restore.

        Args:
            found: a checkpoint; None for the state as it is now.
        """
        return LoopState(
            self._weights, self._objects, self.draws, self.core.distributed, self.progress.position, found
        )

    def save_and_wait(self) -> None:
        """Save the state of this boundary, and wait until it is written."""
        self.save_checkpoint()
        self.wait_for_checkpoint()

    def _count_records(self) -> int | None:
        return self.data.records or None

    def _evaluate(self) -> Mapping[str, Any]:
        # The searcher needs a validation, and the script reported none.
        return self.progress.training_metrics()

    def _in_batches(self, period: Length) -> int | None:
        """Return a period in batches; None if it has no limit, or while the data is not known."""
        needed = {
            Unit.BATCHES: 1,
            Unit.RECORDS: self.global_batch_size,
            Unit.EPOCHS: self.steps_per_epoch or self.settings.records_per_epoch,
        }
        return super()._in_batches(period) if needed[period.unit] else None
