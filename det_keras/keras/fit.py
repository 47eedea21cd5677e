"""How `fit` runs a model: segments of the batch plan, and boundaries between batches.

The user's own `model.fit` trains; this module decides what it is given. A training is cut into segments
where Keras would otherwise lose its place (the rest of an interrupted epoch, an exact last batch), and
one callback list hides the seams.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras

from det_keras.config import Length, Unit
from det_keras.core.preempt import StopSignals
from det_keras.keras.arguments import FitArguments
from det_keras.keras.callback_state import (
    CallbackStates,
    changes_weights_at_end,
    prepare_callbacks,
)
from det_keras.keras.callbacks.base import Boundary, InjectedCallback, Validation
from det_keras.keras.callbacks.checkpoint import CheckpointCallback
from det_keras.keras.callbacks.list import SeamlessCallbackList
from det_keras.keras.callbacks.metrics import MetricsCallback
from det_keras.keras.callbacks.preemption import PreemptionCallback
from det_keras.keras.callbacks.progress import ProgressCallback
from det_keras.keras.callbacks.restore import RestoreCallback
from det_keras.keras.callbacks.searcher import SearcherCallback
from det_keras.keras.callbacks.validation import ValidationCallback
from det_keras.keras.callbacks.workload import workload_callbacks
from det_keras.keras.capture import StateCapture
from det_keras.keras.data import plan_seed
from det_keras.keras.distributed.team import Team
from det_keras.keras.history import FitHistory
from det_keras.keras.metric_values import plain_logs, plain_value
from det_keras.keras.phase import PhaseRecord, phase_signature
from det_keras.keras.position import Position, Segment, Target, next_segment
from det_keras.keras.random_ops import warn_of_stateful_random_ops
from det_keras.keras.variables import VariableSet, build_everything

if TYPE_CHECKING:
    from det_keras.core import Context
    from det_keras.keras.context import KerasContext

__all__ = ["FitRun"]

logger = logging.getLogger(__name__)

_NEVER = 1 << 62


class FitRun:
    """One call of `context.fit`, from its arguments to its history.

    Args:
        context: where it runs.
        model: compiled.
        arguments: checked.

    Attributes:
        position: the last batch boundary.
        target: where training ends.
        best_metric: the searcher's best metric so far in this trial.
        logs_of_boundary: Keras's running training metrics at the newest boundary.
        logs_of_epoch: the logs of the newest epoch that ended, as Keras made them; None before the first.
        last_validation: the newest validation of this process, None before the first.
        team: the workers.
    """

    def __init__(self, context: KerasContext, model: Any, arguments: FitArguments) -> None:
        self.context = context
        self.core: Context = context.core
        self.model = model
        self.settings = context.settings
        self.phase_index = len(context.phases)
        self.batches_before = sum(phase.batches for phase in context.phases)
        self.user_callbacks = arguments.callbacks_of(is_chief=self.core.distributed.is_chief)
        self.callback_states = CallbackStates(self.user_callbacks)
        self.optimizers: Sequence[Any] = context.optimizers_of(model)
        self.history = FitHistory()
        self.best_metric: float | None = None
        self.last_validation: Validation | None = None
        self.last_validation_batch = 0
        self.last_checkpoint_batch = 0
        self.validations = 0
        self.was_restored = False
        self._arguments = arguments
        self._length_is_own = self.core.info is None or self.settings.max_length is None
        self.source, self._validator = arguments.open(
            plan_seed(context.seed, self.phase_index),
            self.core.distributed,
            reads_on=self.settings.epochs_read_on,
        )
        self.team = Team(self)
        first_epoch = arguments.initial_epoch if self.core.info is None else 0
        self.position = Position(epoch=first_epoch)
        self.target = self._first_target()
        self._variables: VariableSet | None = None
        self._capture = StateCapture(self, context.code)
        self._restore: RestoreCallback | None = None
        self._segment = Segment(0, 0)
        self._segment_start = self.position
        self._carried_metrics: Any = None
        self._next_batch = _NEVER
        self._stopped = False
        self._signals = StopSignals()
        self._preemption = PreemptionCallback(self._signals)
        self._last_saved: tuple[int, bool] | None = None
        self.logs_of_boundary: Mapping[str, Any] = {}
        self.logs_of_epoch: Mapping[str, Any] | None = None
        self._injected = self._inject()
        self._callbacks = SeamlessCallbackList(
            [*self.user_callbacks, self.history],
            self,
            model=model,
            verbose=arguments.verbosity(is_chief=self.core.distributed.is_chief),
            epochs=self._planned_epochs(),
            steps=arguments.steps_per_epoch or self.source.steps_per_epoch,
        )

    # What injected callbacks ask and do.

    @property
    def total_batches(self) -> int:
        """Batches trained in the script so far, over all phases."""
        return self.batches_before + self.position.batches

    @property
    def global_batch_size(self) -> int | None:
        """Samples per update, None where neither the data nor the hyperparameters tell."""
        return self.source.batch_size or self.settings.global_batch_size

    @property
    def epochs_left(self) -> int:
        """Epochs to come, the one in which training stands included."""
        if self.target.epochs is not None:
            return max(self.target.epochs - self.position.epoch, 0)
        left = max((self.target.batches or 0) - self.position.batches, 0)
        return left // (self.source.steps_per_epoch or 1) + 2

    @property
    def variables(self) -> VariableSet:
        """All variables of the training; they exist once a step was taken or everything was built."""
        if self._variables is None:
            self._variables = VariableSet(self.model, self.used_optimizers)
        return self._variables

    @property
    def used_optimizers(self) -> list[Any]:
        """The optimizers that have variables; after a step, those that the training uses."""
        return [optimizer for optimizer in self.optimizers if optimizer.built]

    @property
    def will_be_restored(self) -> bool:
        """Whether a checkpoint is still to be put back."""
        return self._restore is not None and self._restore.is_pending

    @property
    def may_lack_rows(self) -> bool:
        """Whether one of several workers may have no row of some batch."""
        return self.source.may_lack_rows or (self._validator is not None and self._validator.may_lack_rows)

    def signature(self) -> dict[str, Any]:
        """Return what this phase is known by."""
        return phase_signature(
            epochs=self._arguments.epochs if self._length_is_own else None,
            initial_epoch=self._arguments.initial_epoch if self.core.info is None else 0,
            data=self.source.describe(),
            trainable=[variable.path for variable in self.model.trainable_variables],
        )

    def counters(self) -> dict[str, int]:
        """Return how much is trained, as it is added to every report."""
        counters = {"batches": self.total_batches, "epochs": self.position.epoch}
        records = self.source.records_before(self.position.epoch, self.position.step)
        if records is None and self.settings.global_batch_size is not None:
            records = self.position.batches * self.settings.global_batch_size
        if records is not None and self.phase_index == 0:
            counters["records"] = records
        return counters

    @property
    def is_ending(self) -> bool:
        """Whether no further batch is to be trained, as far as is known now."""
        return bool(self.model.stop_training) or self.target.is_reached(self.position)

    def training_metrics(self) -> dict[str, Any]:
        """Return Keras's running training metrics as they were at the newest boundary."""
        return plain_logs(self.logs_of_boundary)

    def next_interruption(self, start: int, unit: int) -> int:
        """Return the batch before which training is sure to stop for something, when it goes on from `start`.

        Args:
            start: counted over this `fit`.
            unit: the longest stretch, in batches.
        """
        epochs, stops = self.source.epochs, [(start // unit + 1) * unit]
        period = self._in_batches(self.settings.validation_period)
        if period is not None:
            stops.append(self.last_validation_batch + period)
        if self.target.batches is not None:
            stops.append(self.target.batches)
        if epochs is not None:
            begun = self.position.batches - self.position.step
            epoch_end = begun + epochs.steps_in(self.position.epoch)
            if self._is_validation_due(self.position.epoch):
                stops.append(epoch_end)
            if self.target.epochs is not None:
                stops.append(
                    begun + epochs.start_of(self.target.epochs) - epochs.start_of(self.position.epoch)
                )
        return min(stop for stop in stops if stop > start)

    def set_target(self, target: Target) -> None:
        """Say where training ends."""
        self.target = target

    def stop(self) -> None:
        """End training at this boundary."""
        self._stopped = True
        self.model.stop_training = True

    def should_stop(self) -> bool:
        """Tell whether the master or a signal asked the workers to stop; all of them answer the same."""
        return self.team.should_leave(self._is_asked_to_stop())

    def validate(self) -> Validation:
        """Validate now, tell the injected callbacks, and return the result."""
        self.core.train.set_status("validating")
        for callback in self._injected:
            callback.on_validation_begin(self)
        # Keras resets the metrics for an evaluation; in mid-epoch the training's own must outlive it.
        metrics = self.variables.copy_metrics() if self.position.step > 0 else None
        values = self._evaluate()
        if metrics is not None:
            self.variables.assign_metrics(metrics)
        self.core.train.set_status("training")
        self.validations += 1
        validation = Validation(self.total_batches, values, self._is_best(values))
        self.last_validation = validation
        self.last_validation_batch = self.position.batches
        self.context.validated_at = self.total_batches
        for callback in self._injected:
            callback.on_validation(self, validation)
        return validation

    def skip_validations(self, validations: int, source_state: Mapping[str, Any]) -> None:
        """Record that the run before an interruption validated so many times, and bring the data to there."""
        self.validations = validations
        if self._validator is not None:
            self._validator.source.pass_over(validations, source_state)

    def validation_source_state(self) -> dict[str, Any] | None:
        """Return where the validation data stands, for `skip_validations`; None without validation data."""
        return None if self._validator is None else self._validator.source.state_between_passes()

    def build(self) -> None:
        """Make every variable that the first step would make."""
        build_everything(self.model, self.source.element_spec)

    def save_checkpoint(self, *, final: bool = False) -> None:
        """Save the state of this boundary in the background, unless it is saved already.

        Args:
            final: the state after training, in which nothing is left to do.
        """
        batches, was_final = self._last_saved or (-1, False)
        is_saved = was_final or not (final and self._changed_after_training())
        if batches == self.position.batches and is_saved:
            return
        self._last_saved = (self.position.batches, final)
        self.last_checkpoint_batch = self.position.batches
        self._callbacks.flush()
        workers = self.team.gather_state()
        if self.core.distributed.is_chief:
            state = self._capture.take(finished=final, workers=workers)
            self.context.writer.submit(self._capture.metadata(), state, _log_saved)

    def prepare_checkpoints(self) -> None:
        """Make memory for the copies of all variables ready in the background; called after the first step."""
        if self.core.distributed.is_chief:
            warn_of_stateful_random_ops(self.model)
            self.context.writer.prepare(self.variables.size_bytes)

    def wait_for_checkpoint(self) -> None:
        """Return when every checkpoint is written; raises CheckpointError if the newest could not be."""
        self.core.distributed.on_chief(self.context.writer.wait)

    # The training itself.

    def execute(self, restore: RestoreCallback | None) -> FitHistory:
        """Train to the target and return the history of the whole training.

        Args:
            restore: the checkpoint of this phase to go on from; None to begin it.
        """
        self._restore = restore
        if restore is not None:
            self._prepare_restore(restore)
            if restore.is_finished:
                restore.restore(self)
                return self._finish_phase()
        try:
            with self.team.at_work(is_new=restore is None), self._signals:
                with _without_data_warnings(), _unfinalized(self.model.optimizer):
                    self._train()
                self._end()
        except BaseException:
            self._callbacks.abandon()
            raise
        return self._finish_phase()

    def epoch_begins(self, epoch: int) -> bool:
        """Prepare an epoch for the segment that Keras begins; see `SegmentListener`."""
        segment = self._segment
        first = segment.first_step if epoch == segment.first_epoch else 0
        self._segment_start = self.position
        is_begun = self._carried_metrics is not None
        if not (self._restore is not None and first > 0 and not is_begun):
            self.source.begin_epoch(epoch, first, segment.stop_step)
        return not is_begun

    def epoch_begun(self) -> None:
        """Put back what Keras resets at each of its epochs; see `SegmentListener`."""
        if self._carried_metrics is not None:
            self.variables.assign_metrics(self._carried_metrics)
            self._carried_metrics = None
        elif self._restore is not None and self._restore.is_in_mid_epoch and self._segment.first_step > 0:
            self._put_back(self._restore)
            self.source.begin_epoch(self.position.epoch, self.position.step, self._segment.stop_step)
        self._plan_boundary()

    def batch_ended(self, step: int, logs: Any) -> None:
        """Act at the boundary after a batch if anybody wants to; see `SegmentListener`."""
        start, segment = self._segment_start, self._segment
        done = segment.num_batches
        if done is not None and step >= done:
            # The segment's end is a boundary of its own, after the epoch's validation if it ends too.
            self.position = start.after_batches(start.step + done)
            return
        self.position = start.after_batches(start.step + step)
        wants_boundary = self.team.hear(leave=self._is_asked_to_stop(), end=self.model.stop_training)
        if wants_boundary or self.position.batches >= self._next_batch:
            self._visit_boundary(Boundary(at_epoch_end=False, logs=self.team.metrics(logs)))

    def epoch_ended(self, epoch: int, logs: dict[str, Any]) -> None:
        """End an epoch, or only the segment where the epoch goes on; see `SegmentListener`."""
        self.model.stop_training = self.team.agree_to_end(self.model.stop_training)
        if self._is_part_of_epoch():
            self._visit_boundary(Boundary(at_epoch_end=False, logs=logs))
            self._carried_metrics = self.variables.copy_metrics()
            return
        trained_nothing = self.position == self._segment_start
        if self.position.step == 0:
            raise ValueError(
                f"Epoch {epoch + 1} had no batch: the training data is empty, or gave all of it in an earlier epoch."
            )
        self.source.end_epoch(epoch)
        if trained_nothing:
            # The checkpoint was taken after the last batch of data whose length only its end tells.
            logs = dict(self.model._get_metrics_result_or_logs(dict(self.logs_of_boundary)))
        self.position = self.position.next_epoch()
        self.logs_of_boundary = logs
        if self._is_validation_due(epoch):
            current = self.last_validation
            if current is None or current.batches != self.total_batches:
                current = self.validate()
            if self._validator is not None:
                logs.update(current.metrics)
        # A copy: callbacks may add to the logs, and Keras's end of training does not see that.
        self.logs_of_epoch = dict(logs)
        self._callbacks.end_epoch(epoch, logs)
        self._visit_boundary(Boundary(at_epoch_end=True, logs=logs))

    def _prepare_restore(self, restore: RestoreCallback) -> None:
        self.was_restored = True
        restore.check(self)
        self.position = restore.position
        self.last_validation_batch = restore.last_validation_batch
        self.core.backend.rewind(self.total_batches)
        if not restore.is_finished:
            prepare_callbacks(self.user_callbacks, self.position.epoch)

    def _train(self) -> None:
        if self._restore is None:
            self.source.reset()
        self._callbacks.on_train_begin()
        self.callback_states.begin()
        for callback in self._injected:
            callback.on_begin(self)
        if self._restore is not None and not self._restore.is_in_mid_epoch:
            self._put_back(self._restore)
        if self._restore is not None and self._restore.was_stopped:
            self._stopped = True
        while not self._stopped:
            segment = self._next_segment()
            if segment is None:
                break
            self._run(segment)
            self._stopped = self._stopped or self.model.stop_training
        if self._restore is not None:
            # Nothing was left to train, so no epoch has put the state back.
            self._restore.restore(self)

    def _next_segment(self) -> Segment | None:
        epochs = self.source.epochs
        if epochs is None:
            return next_segment(self.position, self.target, None)
        steps = epochs.steps_in(self.position.epoch)
        return next_segment(self.position, self.target, steps, are_equal=epochs.are_equal)

    def _put_back(self, restore: RestoreCallback) -> None:
        restore.restore(self)
        for callback in self._injected:
            callback.on_restored(self)

    def _run(self, segment: Segment) -> None:
        self._segment = segment
        self._callbacks.begin_segment(segment.first_step)
        self.model.fit(
            self.source.dataset(segment.num_batches),
            initial_epoch=segment.first_epoch,
            epochs=segment.stop_epoch,
            callbacks=self._callbacks,
            shuffle=False,
            verbose=0,
        )

    def _end(self) -> None:
        if isinstance(self.model.optimizer, keras.optimizers.Optimizer):
            self.model.optimizer.finalize_variable_values(self.model.trainable_weights)
        self._callbacks.finish(self.logs_of_epoch)
        self.team.end()
        for callback in self._injected:
            callback.on_end(self)
        self.core.train.set_status("finishing")
        self.wait_for_checkpoint()
        self._preemption.leave_at_end(self)

    def _finish_phase(self) -> FitHistory:
        record = PhaseRecord(
            self.signature(), self.history.get_state(), self.position.batches, self._data_states()
        )
        self.context.phase_finished(record)
        return self.history

    def pass_over(self, record: PhaseRecord) -> None:
        """Bring the data to where an earlier process left it at the end of this phase."""
        states, passes = record.data, len(record.history["epoch"])
        self.source.pass_over(passes, states.get("source") or {}, batches=record.batches)
        if self._validator is not None:
            self._validator.source.pass_over(
                states.get("validations", 0), states.get("validation_source") or {}
            )

    def _data_states(self) -> dict[str, Any]:
        validation = self._validator.source.state_between_passes() if self._validator is not None else {}
        return {
            "source": self.source.state_between_passes(),
            "validations": self.validations,
            "validation_source": validation,
        }

    def _is_asked_to_stop(self) -> bool:
        return self.core.preempt.is_requested or self._signals.received is not None

    def _visit_boundary(self, boundary: Boundary) -> None:
        self.logs_of_boundary = boundary.logs
        for callback in self._injected:
            callback.on_boundary(self, boundary)
        self._plan_boundary()

    def _plan_boundary(self) -> None:
        wishes = [callback.next_batch(self) for callback in self._injected]
        self._next_batch = min((wish for wish in wishes if wish is not None), default=_NEVER)

    def _is_part_of_epoch(self) -> bool:
        """Tell whether the segment that ended is followed by more of the same epoch."""
        if self.model.stop_training or self._segment.stop_step is None:
            return False
        if self.source.epochs is not None:
            return self.position.step < self.source.epochs.steps_in(self.position.epoch)
        # An epoch of unknown length: it goes on if the segment was not cut short by the end of the data.
        return self.position.step >= self._segment.stop_step

    def _is_validation_due(self, epoch: int) -> bool:
        """Return whether to validate at the end of `epoch`; without validation data each epoch's metrics count."""
        return self._validator is None or self._validator.is_due(epoch)

    def _evaluate(self) -> dict[str, Any]:
        """Return the metrics of the model as it is now, by the names under which they are reported."""
        if self._validator is None:
            return self.training_metrics()
        with self.team.ready_to_validate():
            logs = self._validator.run(self.model, self._callbacks)
        return {f"val_{name}": plain_value(value) for name, value in logs.items()}

    def _is_best(self, metrics: dict[str, float]) -> bool:
        value = metrics.get(self.settings.metric)
        if not isinstance(value, float) or not self.settings.is_better(value, self.best_metric):
            return False
        self.best_metric = value
        if self.settings.checkpoint_policy != "best":
            return True
        # A tie may be this trial's own report from before a kill, so only a strictly better one counts.
        elsewhere = self.core.backend.best_validation()
        return elsewhere is None or not self.settings.is_better(elsewhere, value)

    def _changed_after_training(self) -> bool:
        """Tell whether the weights may differ from those at the last batch: EMA, or callbacks at the end."""
        if getattr(self.model.optimizer, "use_ema", False):
            return True
        return any(changes_weights_at_end(callback) for callback in self.user_callbacks)

    def _first_target(self) -> Target:
        """Return where training ends as long as no searcher says otherwise."""
        epochs, limit, lengths = self._arguments.epochs, self.settings.batch_limit, self.source.epochs
        left = None if limit is None else max(limit - self.batches_before, 0)
        if left is None or (
            lengths is not None and lengths.start_of(epochs) - lengths.start_of(self.position.epoch) <= left
        ):
            return Target(epochs=epochs)
        return Target(batches=left)

    def _planned_epochs(self) -> int:
        length = self.settings.max_length
        if self.core.info is None or length is None or length.unit is not Unit.EPOCHS:
            return self._arguments.epochs
        return length.value

    def _inject(self) -> list[InjectedCallback]:
        settings = self.settings
        first, last = workload_callbacks(settings.scheduling_unit, self.user_callbacks)
        return [
            *first,
            MetricsCallback(settings.report_period, self._arguments.on_nan),
            ValidationCallback(
                self._in_batches(settings.validation_period),
                # Without validation data there is nothing to look at before the first batch.
                initial=settings.initial_validation and self._validator is not None,
            ),
            CheckpointCallback(settings.checkpoint_policy, self._in_batches(settings.checkpoint_period)),
            SearcherCallback(settings.max_length),
            self._preemption,
            ProgressCallback(),
            *self.team.callbacks(),
            *last,
        ]

    def _in_batches(self, period: Length) -> int | None:
        if period.is_unlimited:
            return None
        return period.to_batches(
            self.global_batch_size,
            self.settings.records_per_epoch,
            batches_per_epoch=self.source.steps_per_epoch,
        )


def _log_saved(uuid: str) -> None:
    logger.debug("Checkpoint %s is saved.", uuid)


@contextmanager
def _unfinalized(optimizer: Any) -> Iterator[None]:
    """Keep `model.fit` from ending the training at each segment's end.

    Keras overwrites the weights with their moving averages there (`use_ema`), which belongs to the end of
    the whole training.
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
    """Silence Keras's warning at the end of data of unknown size, where it is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        yield
