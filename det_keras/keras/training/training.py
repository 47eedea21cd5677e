"""A training of a script, whoever drives it: a `fit`, or a loop written by hand.

The driver trains the batches, and tells the training how far it is. At *boundaries* between two batches the training
calls its boundary callbacks, which report, validate, save and stop.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from det_keras.cluster_info import get_copy_info
from det_keras.config import Length
from det_keras.core import Context
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.core.preempt import StopSignals
from det_keras.errors import DetError
from det_keras.keras.data import plan_seed
from det_keras.keras.data.waiting import DataWait
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.history import FitHistory
from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback
from det_keras.keras.training.boundaries.calls import BoundaryCalls
from det_keras.keras.training.boundaries.checkpoint import CheckpointCallback
from det_keras.keras.training.boundaries.layers import LayersCallback, LayersPart
from det_keras.keras.training.boundaries.metrics import MetricsCallback
from det_keras.keras.training.boundaries.model import ModelCallback
from det_keras.keras.training.boundaries.preemption import PreemptionCallback
from det_keras.keras.training.boundaries.progress import ProgressCallback
from det_keras.keras.training.boundaries.searcher import SearcherCallback
from det_keras.keras.training.boundaries.verification import VerificationCallback
from det_keras.keras.training.boundaries.workers import DivergenceCallback
from det_keras.keras.training.boundaries.workload import workload_callbacks
from det_keras.keras.training.pace import Pace
from det_keras.keras.training.parts import Part, Saved, WeightsPart
from det_keras.keras.training.phase import PhaseRecord, Raised, describe_error, own_error_first
from det_keras.keras.training.position import Position, Target
from det_keras.keras.training.progress import Progress, Validation
from det_keras.keras.training.settings import FitSettings
from det_keras.keras.training.snapshot import CodeArchive, Snapshots
from det_keras.keras.training.workers import Workers


class TrainingContext(Protocol):
    """The part of the training context that a training uses.

    Attributes:
        core: the framework-free parts.
        settings: how often to report, validate and save.
        seed: the seed of all random operations.
        phases: the finished trainings.
        writer: writes checkpoints in the background.
        code: the submitted code.
        shared_step: the state that the workers exchange with each step; None on one worker.
        validated_at: batches trained in the script at its newest validation; None before the first.
    """

    core: Context
    settings: FitSettings
    seed: int
    phases: list[PhaseRecord]
    writer: CheckpointWriter
    code: CodeArchive
    shared_step: SharedStep | None
    validated_at: int | None

    def phase_finished(self, record: PhaseRecord, leave: Callable[[], PhaseRecord] | None = None) -> None:
        """Record a finished training; of one that an exception left, also what saves its end; see `Training.fail`."""


class Training(abc.ABC):
    """One training, which boundary callbacks see as the protocol `Run`.

    Args:
        context: the training context.
        first_epoch: the epoch in which it begins, from 0.

    Attributes:
        core: the framework-free context.
        settings: how often to report, validate and save.
        phase_index: number of the training in the script, from 0.
        seed: the seed of its data.
        progress: the current progress, which only the training and its driver change.
        history: the metrics of finished epochs.
        signals: the signals that ask this process to stop.
        boundaries: the boundary callbacks.
    """

    def __init__(self, context: TrainingContext, *, first_epoch: int = 0) -> None:
        self._context = context
        self.core = context.core
        self.settings = context.settings
        self.phase_index = len(context.phases)
        self.seed = plan_seed(context.seed, self.phase_index)
        batches_before = sum(phase.batches for phase in context.phases)
        self.progress = Progress(batches_before, Position(epoch=first_epoch), Target(epochs=first_epoch))
        self._pace = Pace(self.progress)
        self.history = FitHistory()
        self.signals = StopSignals()
        self._preemption = PreemptionCallback(self.signals)
        self.boundaries: BoundaryCalls
        self._layers: LayersCallback | None = None
        if self.settings.profiles_layers:
            self._layers = LayersCallback(
                self.settings.report_period, self.trainable_variables, self.optimizers
            )
        self._parts: Sequence[Part] = ()
        self._snapshots: Snapshots
        self._workers: Workers

    def _connect(
        self,
        workers: Workers,
        weights: WeightsPart,
        parts: Sequence[Part],
        *,
        on_nan: str,
        user_callbacks: Sequence[Any] = (),
        validation: BoundaryCallback | None = None,
    ) -> None:
        """Connect the parts that a driver has made.

        Args:
            workers: the workers of the training.
            weights: the part with the variables.
            parts: all parts, in the order in which they are restored.
            on_nan: ``report`` or ``stop`` if the loss is not finite.
            user_callbacks: callbacks of the user that may have hooks for workloads.
            validation: requests validations; None if the script does.
        """
        self._workers = workers
        if self._layers is not None:
            parts = [*parts, LayersPart(self._layers)]
        self._parts = parts
        self._snapshots = Snapshots(
            self.core,
            self._context.writer,
            self._context.code,
            phases=self._context.phases,
            signature=self.signature,
            metric=self.settings.metric,
            length=self.settings.max_length,
            progress=self.progress,
            weights=weights,
            parts=parts,
            workers=workers,
        )
        settings, copy = self.settings, get_copy_info()
        first, last = workload_callbacks(settings.scheduling_unit, user_callbacks)
        # Metrics are reported before the validation and the checkpoint of the same batch: a process that resumes from
        # the checkpoint can rely on the report having been made. A checkpoint is saved before the searcher's operation
        # is completed and before training stops, so that there is a state to resume from. The workers compare their
        # weights and requests after these callbacks.
        callbacks = [
            *first,
            ModelCallback(self.models),
            MetricsCallback(settings.report_period, on_nan, self.optimizers),
            *([] if self._layers is None else [self._layers]),
            *([] if validation is None else [validation]),
            CheckpointCallback(
                settings.checkpoint_policy,
                lambda: self._in_batches(settings.checkpoint_period),
            ),
            SearcherCallback(settings.max_length),
            *([] if copy is None else [VerificationCallback(copy)]),
            self._preemption,
            ProgressCallback(self._pace),
            *([] if workers.is_single else [DivergenceCallback(workers, settings.divergence_check_period)]),
            *last,
        ]
        self.boundaries = BoundaryCalls(self, callbacks)

    # What the driver knows.

    @property
    @abc.abstractmethod
    def global_batch_size(self) -> int | None:
        """Samples per update; None if neither the data nor the hyperparameters define it."""

    @property
    @abc.abstractmethod
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch; None while it is unknown."""

    @abc.abstractmethod
    def trainable_variables(self) -> Sequence[Any]:
        """Return the variables that gradients change, as far as they exist."""

    @abc.abstractmethod
    def optimizers(self) -> Sequence[Any]:
        """Return the optimizers that change them."""

    @abc.abstractmethod
    def models(self) -> Sequence[Any]:
        """Return the models that are trained, whose layers are reported."""

    @abc.abstractmethod
    def signature(self) -> Mapping[str, Any]:
        """Return the JSON values that identify the training in a later process."""

    @abc.abstractmethod
    def _count_records(self) -> int | None:
        """Return the number of trained records; None if it is not known."""

    @abc.abstractmethod
    def _evaluate(self) -> Mapping[str, Any]:
        """Return the metrics of a validation, by the names under which they are reported."""

    # The protocol `Run`.

    @property
    def is_ending(self) -> bool:
        """Whether no further batch will be trained, by the current target and stop requests."""
        return self.progress.is_stopped or self.progress.is_at_target

    def counters(self) -> dict[str, int]:
        """Return the counts of trained batches, epochs and records, which are added to every report."""
        counters = {"batches": self.progress.total_batches, "epochs": self.progress.position.epoch}
        records = self._count_records() if self.phase_index == 0 else None
        return counters if records is None else {**counters, "records": records}

    def next_interruption(self, start: int, unit: int) -> int:
        """Return the first batch after `start` at which training is known to be interrupted.

        Args:
            start: a batch, counted over this training.
            unit: the maximum number of batches between two interruptions.
        """
        return (start // unit + 1) * unit

    def should_stop(self) -> bool:
        """Return whether the master or a signal asked the workers to stop; the answer is the same on all of them."""
        return self._workers.should_leave(self.is_asked_to_stop)

    def stop(self) -> None:
        """End training at this boundary."""
        self.progress.is_stopped = True

    def aim_at(self, target: Target) -> None:
        """Set where training ends."""
        self.progress.target = target

    def validate(self) -> Validation:
        """Validate now, notify the boundary callbacks before and after, and return the result."""
        self.boundaries.begin_validation()
        is_in_epoch = self.progress.is_in_epoch
        # A validation inside of an epoch is not a slow batch.
        self.progress.is_in_epoch = False
        metrics = self._evaluate()
        self.progress.is_in_epoch = is_in_epoch
        return self.record_validation(metrics)

    def save_checkpoint(self, *, final: bool = False) -> None:
        """Save the state of this boundary in the background, unless it is already saved.

        Args:
            final: this is the state after the end of training.
        """
        self._save(is_end=False, has_changed=False)

    def prepare_checkpoints(self) -> None:
        """Allocate memory for the copies of all variables in the background; called after the first step."""
        self._snapshots.prepare()

    def wait_for_checkpoint(self) -> None:
        """Wait until every checkpoint is written.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
        """
        self._snapshots.wait()

    # The calls of the driver.

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the master or a signal asked this process to stop."""
        return self.core.preempt.is_requested or self.signals.received is not None

    def resume_at(self, state: Mapping[str, Any]) -> None:
        """Set the position of a checkpoint, before anything else of it is restored.

        Args:
            state: the checkpoint's training state.
        """
        self.progress.resume_at(state)
        if state["validations"]:
            last = self.progress.last_validation_batch
            self._context.validated_at = self.progress.batches_before + last
        self.core.backend.rewind(self.progress.total_batches)

    def _restore(self, saved: Saved) -> None:
        """Restore all parts from a checkpoint."""
        self.progress.awaits_state = False
        for part in self._parts:
            part.restore(saved)

    def watch(self, wait: DataWait) -> None:
        """Let the profiler report how fast the training is, and how often it waits.

        Args:
            wait: looks at the data.
        """
        # The speed is that of all workers, so one of them reports it.
        self.core.profiler.watch(wait, *([self._pace] if self.core.distributed.is_chief else []))

    def enter_epoch(self) -> None:
        """Record that batches of an epoch follow, and plan the next boundary."""
        self.boundaries.plan()
        self.progress.is_in_epoch = True

    def visit(self, boundary: Boundary) -> None:
        """Let the boundary callbacks act between two batches."""
        self.progress.logs_of_boundary = boundary.logs
        self.boundaries.visit(boundary)

    def record_validation(self, metrics: Mapping[str, Any]) -> Validation:
        """Report the result of a validation at the newest batch.

        Args:
            metrics: by the names under which they are reported.
        """
        validation = self.progress.add_validation(metrics, is_best=self._is_best(metrics))
        self._context.validated_at = validation.batches
        self.boundaries.end_validation(validation)
        return validation

    def end(self) -> None:
        """End the training: save its last state, and leave the process if a signal arrived in the meantime."""
        self.boundaries.end()
        self.core.train.set_status("finishing")
        self.wait_for_checkpoint()
        self._preemption.leave_at_end(self)

    def finish(self, data: Mapping[str, Any]) -> FitHistory:
        """Record that the training is finished, in this process or an earlier one, and return its history.

        Args:
            data: the state of the data at its end, as JSON values.
        """
        self._context.phase_finished(self._record(data))
        return self.history

    def fail(self, error: BaseException, data: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Record that an exception leaves the training, with its state: the script may catch it and train again.

        The state is written when the script begins its next training. Until then the script may die of the exception,
        and this training resumes from its newest checkpoint. On several workers, they exchange their states then: now
        the others may be in the middle of a step.

        Args:
            error: the exception.
            data: returns the state of the data, as JSON values.
        """
        if isinstance(error, SystemExit | DetError) or self.progress.awaits_state:
            return
        with own_error_first():
            self._record_left(error, data(), self._capture_left())

    def _capture_left(self) -> Callable[[Raised | None], None]:
        """Return what saves the state in which the script leaves the training."""
        if self.progress.trained_batches == self.progress.batches_before:
            return lambda _: None
        return self._snapshots.capture_left()

    def _record_left(
        self, error: BaseException, data: Mapping[str, Any], save: Callable[[Raised | None], None]
    ) -> None:
        """Record that an exception has left the training, with what saves its state; see `fail`."""
        record, raised = self._record(data), describe_error(error)

        def leave() -> PhaseRecord:
            raised_by_all = self._workers.of_all(raised)
            save(raised_by_all)
            return replace(record, raised=raised_by_all)

        self._context.phase_finished(record, leave)

    def _record(self, data: Mapping[str, Any]) -> PhaseRecord:
        batches = self.progress.position.batches
        return PhaseRecord(self.signature(), self.history.get_state(), batches, data)

    def _save(self, *, is_end: bool, has_changed: bool) -> None:
        """Save the state of this boundary; see `Snapshots.save`."""
        self.progress.last_checkpoint_batch = self.progress.position.batches
        self._snapshots.save(is_end=is_end, has_changed=has_changed)

    def _in_batches(self, period: Length) -> int | None:
        """Return a period in batches; None if it has no limit."""
        return self.settings.in_batches(period, self.global_batch_size, self.steps_per_epoch)

    def _is_best(self, metrics: Mapping[str, Any]) -> bool:
        """Record the searcher's metric, and return whether it is the best of the experiment so far."""
        value, progress, settings = metrics.get(self.settings.metric), self.progress, self.settings
        if not isinstance(value, float) or not settings.is_better(value, progress.best_metric):
            return False
        progress.best_metric = value
        if settings.checkpoint_policy != "best":
            return True
        # An equal value may be this trial's own report from before it was killed, so only a strictly better value of
        # the experiment counts.
        elsewhere = self.core.backend.best_validation()
        return elsewhere is None or not settings.is_better(elsewhere, value)
