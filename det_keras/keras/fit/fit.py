"""One call of `context.fit`: creates and connects its parts, and runs it from its arguments to its history.

Keras's `model.fit` does the training; `segments` decides the arguments of each call.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import keras

from det_keras.core.preempt import StopSignals
from det_keras.keras.checkpoint.trained_model import TrainedModel
from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.data import plan_seed
from det_keras.keras.data.waiting import DataWait
from det_keras.keras.fit.arguments import FitArguments
from det_keras.keras.fit.callback_list import SeamlessCallbackList
from det_keras.keras.fit.callback_state import CallbackStates, prepare_callbacks
from det_keras.keras.fit.capture import StateCapture
from det_keras.keras.fit.checkpointer import Checkpointer
from det_keras.keras.fit.parts import FitParts
from det_keras.keras.fit.resume_plan import ResumePlan
from det_keras.keras.fit.segments import SegmentRunner
from det_keras.keras.fit.team import Team
from det_keras.keras.fit.validations import Validations
from det_keras.keras.history import FitHistory
from det_keras.keras.live_view import live_views
from det_keras.keras.training.boundaries.base import InjectedCallback
from det_keras.keras.training.boundaries.checkpoint import CheckpointCallback
from det_keras.keras.training.boundaries.metrics import MetricsCallback
from det_keras.keras.training.boundaries.preemption import PreemptionCallback
from det_keras.keras.training.boundaries.progress import ProgressCallback
from det_keras.keras.training.boundaries.searcher import SearcherCallback
from det_keras.keras.training.boundaries.validation import ValidationCallback
from det_keras.keras.training.boundaries.workers import DivergenceCallback
from det_keras.keras.training.boundaries.workload import workload_callbacks
from det_keras.keras.training.phase import PhaseRecord, check_signature, phase_signature
from det_keras.keras.training.position import Position
from det_keras.keras.training.progress import Progress, Validation
from det_keras.keras.training.resume import ResumePoint
from det_keras.keras.training.run import TrainingContext

__all__ = ["FitContext", "FitRun"]


class FitContext(TrainingContext, Protocol):
    """The part of the training context that a `fit` uses."""

    def optimizers_of(self, model: Any) -> list[Any]:
        """Return every optimizer that trains `model`."""

    def prepare_optimizers(self, model: Any) -> None:
        """Make every optimizer that trains `model` exchange gradients between workers."""


class FitRun:
    """One call of `context.fit`; its parts use it through the protocol `Run`.

    Args:
        context: the training context.
        model: the compiled model.
        arguments: the validated arguments of `context.fit`.

    Attributes:
        core: the framework-free context.
        settings: how often to report, validate and save.
        source: the training data.
        progress: the current progress of training.
        parts: the parts that a checkpoint captures and restores.
    """

    def __init__(self, context: FitContext, model: Any, arguments: FitArguments) -> None:
        self._context = context
        self._arguments = arguments
        self.core = context.core
        self.settings = context.settings
        phase_index = len(context.phases)
        is_chief = self.core.distributed.is_chief
        self.source, validator = arguments.open(
            plan_seed(context.seed, phase_index),
            self.core.distributed,
            wraps_around=self.settings.epochs_wrap_around,
        )
        trained = TrainedModel(model, context.optimizers_of(model))
        self.source.is_read_exactly = self.core.distributed.is_alone and trained.takes_single_batches
        self._first_epoch = arguments.initial_epoch if self.core.info is None else 0
        batches_before = sum(phase.batches for phase in context.phases)
        position = Position(epoch=self._first_epoch)
        self.progress = Progress(
            batches_before,
            position,
            self.settings.first_target(
                arguments.epochs, self._first_epoch, self.source.epochs, batches_before
            ),
        )
        may_lack_rows = self.source.may_lack_rows or (validator is not None and validator.may_lack_rows)
        team = Team(
            self.core.distributed,
            context.shared_step,
            trained,
            self.source,
            self.progress,
            seed=context.seed,
            may_lack_rows=may_lack_rows,
        )
        user_callbacks = arguments.callbacks_of(is_chief=is_chief)
        self.parts = FitParts(
            core=self.core,
            settings=self.settings,
            phase_index=phase_index,
            finished_phases=context.phases,
            signature=self._signature,
            trained=trained,
            source=self.source,
            validations=Validations(validator, trained, team, self.progress, self.core, self.settings),
            user_callbacks=user_callbacks,
            callback_states=CallbackStates(user_callbacks),
            history=FitHistory(),
            progress=self.progress,
            team=team,
        )
        verbose = arguments.verbosity(is_chief=is_chief)
        self._callbacks = SeamlessCallbackList(
            [*user_callbacks, self.parts.history, *live_views(self.parts.history, verbose=verbose)],
            model=model,
            verbose=verbose,
            epochs=self.settings.planned_epochs(arguments.epochs, in_trial=self.core.info is not None),
            steps=arguments.steps_per_epoch or self.source.steps_per_epoch,
        )
        capture = StateCapture(self.parts, context.code)
        self._checkpointer = Checkpointer(self.parts, context.writer, capture, self._callbacks)
        self._signals = StopSignals()
        self._preemption = PreemptionCallback(self._signals)
        self._injected = self._inject()

    # The protocol `Run`.

    @property
    def global_batch_size(self) -> int | None:
        """Samples per update; None if neither the data nor the hyperparameters define it."""
        return self.source.batch_size or self.settings.global_batch_size

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch; None while it is unknown because the data has not ended yet."""
        return self.source.steps_per_epoch

    @property
    def is_ending(self) -> bool:
        """Whether no further batch will be trained, by the current target and stop requests."""
        return bool(self.parts.trained.model.stop_training) or self.progress.is_at_target

    def counters(self) -> dict[str, int]:
        """Return the counts of trained batches, epochs and records, which are added to every report."""
        position = self.progress.position
        counters = {"batches": self.progress.total_batches, "epochs": position.epoch}
        records = self.source.records_before(position.epoch, position.step)
        if records is None and self.settings.global_batch_size is not None:
            records = position.batches * self.settings.global_batch_size
        if records is not None and self.parts.phase_index == 0:
            counters["records"] = records
        return counters

    def next_interruption(self, start: int, unit: int) -> int:
        """Return the first batch after `start` at which training is known to be interrupted.

        Interruptions are multiples of `unit`, validations, and the end of training.

        Args:
            start: the batch to continue from, counted over this `fit`.
            unit: the maximum number of batches between two interruptions.
        """
        progress, position, target = self.progress, self.progress.position, self.progress.target
        epochs, stops = self.source.epochs, [(start // unit + 1) * unit]
        period = self.settings.in_batches(
            self.settings.validation_period, self.global_batch_size, self.source.steps_per_epoch
        )
        if period is not None:
            stops.append(progress.last_validation_batch + period)
        if target.batches is not None:
            stops.append(target.batches)
        if epochs is not None:
            begun = position.batches - position.step
            if self.parts.validations.is_due(position.epoch):
                stops.append(begun + epochs.steps_in(position.epoch))
            if target.epochs is not None:
                stops.append(begun + epochs.start_of(target.epochs) - epochs.start_of(position.epoch))
        return min(stop for stop in stops if stop > start)

    def should_stop(self) -> bool:
        """Return whether the master or a signal asked the workers to stop; the answer is the same on all of them."""
        return self.parts.team.should_leave(self._is_asked_to_stop())

    def stop(self) -> None:
        """End training at this boundary."""
        self.progress.is_stopped = True
        self.parts.trained.model.stop_training = True

    def validate(self) -> Validation:
        """Validate now, notify the injected callbacks before and after, and return the result."""
        for callback in self._injected:
            callback.on_validation_begin(self)
        validation = self.parts.validations.run(self._callbacks)
        self._context.validated_at = self.progress.total_batches
        for callback in self._injected:
            callback.on_validation(self, validation)
        return validation

    def save_checkpoint(self, *, final: bool = False) -> None:
        """Save the state of this boundary in the background, unless it is already saved.

        Args:
            final: this is the state after the end of training.
        """
        self._checkpointer.save(final=final)

    def prepare_checkpoints(self) -> None:
        """Allocate memory for the copies of all variables in the background; called after the first step."""
        self._checkpointer.prepare()

    def wait_for_checkpoint(self) -> None:
        """Wait until every checkpoint is written.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
        """
        self._checkpointer.wait()

    # Execution.

    def execute(self, point: ResumePoint | None) -> FitHistory:
        """Train to the target and return the history of the whole training.

        Args:
            point: the checkpoint of this phase to resume from; None to begin the phase.
        """
        plan = self._resume(point) if point is not None else None
        if plan is not None and plan.is_finished:
            plan.restore()
            return self._finish_phase()
        model, team = self.parts.trained.model, self.parts.team
        if not team.is_single:
            self._context.prepare_optimizers(model)
        try:
            with team.at_work(is_new=plan is None), self._signals:
                with _without_data_warnings(), _unfinalized(model.optimizer):
                    self._train(plan)
                self._end()
        except BaseException:
            self._callbacks.abandon()
            raise
        return self._finish_phase()

    def close(self) -> None:
        """Release the data; see `DataSource.close`."""
        self.source.close()
        self.parts.validations.close()
        # They contain the user's data.
        del self._arguments

    def skip_phase(self, record: PhaseRecord, end: RestoredState | None) -> FitHistory:
        """Skip a phase that an earlier process finished, and return its history.

        The model and the data are brought to the state that they had at the end of the phase.

        Args:
            record: the finished phase.
            end: the state at the end of the phase; None if it has no checkpoint any more. The model then keeps its
                weights.

        Raises:
            ModelMismatchError: the script or the model changed.
        """
        parts, states = self.parts, record.data
        variables = parts.trained.variables
        check_signature(parts.phase_index, record.signature, parts.signature())
        passes = len(record.history["epoch"])
        self.source.skip_passes(passes, states.get("source") or {}, batches=record.batches)
        parts.validations.skip(states.get("validations", 0), states.get("validation_source") or {})
        if end is not None:
            # The script may predict or draw random numbers before the next `fit`.
            variables.check(end.variables)
            variables.assign(end.values())
            parts.callback_states.restore(end.pickles(), has_begun=False)
            parts.team.restore_random(end.state, end.folder)
        parts.history.load_state(record.history)
        self._context.phase_finished(record)
        return parts.history

    def _resume(self, point: ResumePoint) -> ResumePlan:
        plan = ResumePlan(point, self.parts)
        plan.begin()
        if point.restored.state["validations"]:
            self._context.validated_at = self.progress.batches_before + self.progress.last_validation_batch
        self.core.backend.rewind(self.progress.total_batches)
        if not plan.is_finished:
            prepare_callbacks(self.parts.user_callbacks, plan.position.epoch)
        return plan

    def _train(self, plan: ResumePlan | None) -> None:
        if plan is None:
            self.source.reset()
        self._callbacks.on_train_begin()
        self.parts.callback_states.begin()
        for callback in self._injected:
            callback.on_begin(self)
        runner = SegmentRunner(
            self, self.parts, self._callbacks, self._injected, plan, self._is_asked_to_stop
        )
        at_once = self.parts.trained.model.steps_per_execution
        wait = DataWait(
            self.source, lambda: self.progress.trained_steps, at_once if isinstance(at_once, int) else 1
        )
        self.core.watch(wait)
        try:
            runner.train()
        finally:
            self.core.watch(None)

    def _end(self) -> None:
        model = self.parts.trained.model
        if isinstance(model.optimizer, keras.optimizers.Optimizer):
            model.optimizer.finalize_variable_values(model.trainable_weights)
        self._callbacks.finish(self.progress.logs_of_epoch)
        self.parts.team.end()
        for callback in self._injected:
            callback.on_end(self)
        self.core.train.set_status("finishing")
        self.wait_for_checkpoint()
        self._preemption.leave_at_end(self)

    def _finish_phase(self) -> FitHistory:
        parts = self.parts
        data = {
            "source": self.source.state_between_passes(),
            "validations": self.progress.validations,
            "validation_source": parts.validations.source_state() or {},
        }
        batches = self.progress.position.batches
        self._context.phase_finished(PhaseRecord(parts.signature(), parts.history.get_state(), batches, data))
        return parts.history

    def _is_asked_to_stop(self) -> bool:
        return self.core.preempt.is_requested or self._signals.received is not None

    # Values derived from the arguments and settings.

    def _signature(self) -> dict[str, Any]:
        is_length_own = self.core.info is None or self.settings.max_length is None
        return phase_signature(
            epochs=self._arguments.epochs if is_length_own else None,
            initial_epoch=self._first_epoch,
            data=self.source.describe(),
            trainable=[variable.path for variable in self.parts.trained.model.trainable_variables],
            virtual_workers=self.core.distributed.virtual_workers,
        )

    def _inject(self) -> list[InjectedCallback]:
        """Return the injected callbacks in the order in which they act at a boundary.

        Metrics are reported before the validation and the checkpoint of the same batch: a process that resumes from
        the checkpoint can rely on the report having been made. A checkpoint is saved before the searcher's operation
        is completed and before training stops, so that there is a state to resume from. The workers compare their
        weights and requests after these callbacks.
        """
        settings, parts = self.settings, self.parts
        size, steps = self.global_batch_size, self.source.steps_per_epoch
        checkpoint_period = settings.in_batches(settings.checkpoint_period, size, steps)
        first, last = workload_callbacks(settings.scheduling_unit, parts.user_callbacks)
        workers = [DivergenceCallback(parts.team, settings.divergence_check_period)]
        return [
            *first,
            MetricsCallback(settings.report_period, self._arguments.on_nan),
            ValidationCallback(
                settings.in_batches(settings.validation_period, size, steps),
                # Without validation data a validation reports training metrics, and there are none before the first
                # batch.
                initial=settings.initial_validation and parts.validations.has_data,
            ),
            CheckpointCallback(settings.checkpoint_policy, lambda: checkpoint_period),
            SearcherCallback(settings.max_length),
            self._preemption,
            ProgressCallback(),
            *([] if parts.team.is_single else workers),
            *last,
        ]


@contextmanager
def _unfinalized(optimizer: Any) -> Iterator[None]:
    """Disable `optimizer.finalize_variable_values` inside the block.

    Keras calls it at the end of each `model.fit`, that is, of each segment. With `use_ema` it overwrites the weights
    with their moving averages, which must happen only once, at the end of the whole training.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        yield
        return
    optimizer.finalize_variable_values = lambda *_: None
    try:
        yield
    finally:
        del optimizer.finalize_variable_values


@contextmanager
def _without_data_warnings() -> Iterator[None]:
    """Suppress Keras's warning at the end of data of unknown size, where the end of the data is expected."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        yield
