"""A `fit` as a training: its parts, and what boundary callbacks ask of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from det_keras.keras.checkpoint.reached import ReachedState
from det_keras.keras.checkpoint.trained_model import TrainedModel
from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.fit.arguments import FitArguments
from det_keras.keras.fit.callback_files import CallbackPart, changes_weights_at_end
from det_keras.keras.fit.callback_list import SeamlessCallbackList
from det_keras.keras.fit.parts import DataPart, ModelPart, ReplicaPart
from det_keras.keras.fit.workers import FitWorkers
from det_keras.keras.live_view import live_views
from det_keras.keras.private_api.steps import captured_variables, traced_functions
from det_keras.keras.random_ops.unsaved import warn_of_stateful_random_ops
from det_keras.keras.training.boundaries.validation import ValidationCallback
from det_keras.keras.training.metric_values import plain_value
from det_keras.keras.training.parts import (
    HistoryPart,
    Part,
    ProgressPart,
    RandomPart,
    ReachedPart,
    Saved,
    WeightsPart,
)
from det_keras.keras.training.phase import check_signature, phase_signature
from det_keras.keras.training.training import Training, TrainingContext
from det_keras.keras.training.written_files import WrittenFiles


class FitRun(Training):
    """One call of `context.fit`.

    Args:
        context: the training context.
        model: the compiled model.
        arguments: the validated arguments of `context.fit`.
        optimizers: every optimizer that trains the model.

    Attributes:
        trained: the model, its optimizers and variables.
        source: the training data.
        validator: evaluates the validation data; None if there is none. A validation then returns the running training
            metrics.
        workers: the workers.
        user_callbacks: the user's callbacks.
        reached: what the training reaches through callbacks, model and optimizers.
        callbacks: the list that calls them.
        files: the files that it writes.
        data: the positions in the data.
    """

    def __init__(
        self, context: TrainingContext, model: Any, arguments: FitArguments, optimizers: Sequence[Any]
    ) -> None:
        first_epoch = arguments.initial_epoch if context.core.info is None else 0
        super().__init__(context, first_epoch=first_epoch)
        self._arguments = arguments
        self._first_epoch = first_epoch
        self._restored: RestoredState | None = None
        workers = self.core.distributed
        self.source, self.validator = arguments.open(
            self.seed, workers, wraps_around=self.settings.epochs_wrap_around
        )
        self.trained = TrainedModel(model, optimizers)
        self.source.first_epoch = first_epoch
        self.source.is_read_exactly = workers.is_alone and self.trained.takes_single_batches
        self.aim_at(
            self.settings.first_target(
                arguments.epochs, first_epoch, self.source.epochs, self.progress.batches_before
            )
        )
        validates = self.validator is not None
        # Asking opens the data.
        may_lack_rows = not workers.is_alone and self.validator is not None and self.validator.may_lack_rows
        self.workers = FitWorkers(
            workers,
            context.shared_step,
            self.trained,
            self.source,
            self.progress,
            seed=context.seed,
            may_lack_rows=self.source.may_lack_rows or may_lack_rows,
        )
        self.user_callbacks = arguments.callbacks_of(is_chief=workers.is_chief)
        verbose = arguments.verbosity(is_chief=workers.is_chief)
        self.callbacks = SeamlessCallbackList(
            [*self.user_callbacks, self.history, *live_views(self.history, verbose=verbose)],
            model=model,
            verbose=verbose,
            epochs=self.settings.planned_epochs(arguments.epochs, in_trial=self.core.info is not None),
            steps=arguments.steps_per_epoch or self.source.steps_per_epoch,
        )
        self.reached = ReachedPart(
            ReachedState(
                {
                    "callbacks": tuple(self.user_callbacks),
                    "model": model,
                    "optimizers": tuple(optimizers),
                    **arguments.generators,
                },
                without={
                    name: data
                    for name, data in arguments.datasets.items()
                    if name not in arguments.generators
                },
                known=lambda: [*self.trained.known_variables(), *self.workers.variables],
                reads_traces=workers.is_alone,
                # The step of one of several workers uses variables of this package too, and is traced later.
                hidden=lambda: (
                    captured_variables(model) if workers.is_alone else self.trained.used_when_built
                ),
            )
        )
        self._callback_part = CallbackPart(self.user_callbacks)
        self.files = WrittenFiles(is_active=workers.is_chief)
        self.data = DataPart(self.source, self.validator, self.progress, is_chief=workers.is_chief)
        self._weights = WeightsPart(
            lambda: self.trained.variables, {"model": model}, lambda: self.trained.optimizers
        )
        self._replica = ReplicaPart(self.workers)
        self._random = RandomPart(model, is_chief=workers.is_chief)
        parts: list[Part] = [
            self.files,
            self.data,
            self._weights,
            HistoryPart(self.history),
            # If the length of an epoch is unknown, this may be its last batch, and a resumed process needs the metrics
            # to end the epoch.
            ProgressPart(self.progress, lambda: self.source.steps_per_epoch is None),
            self.reached,
            self._callback_part,
            ModelPart(self.trained),
            self._random,
            self._replica,
        ]
        # Asked for now, so that a period that cannot be converted is reported before training.
        self._in_batches(self.settings.checkpoint_period)
        self._connect(
            self.workers,
            self._weights,
            parts,
            on_nan=arguments.on_nan,
            user_callbacks=self.user_callbacks,
            validation=ValidationCallback(
                self._in_batches(self.settings.validation_period),
                # Without validation data a validation reports training metrics, and there are none before the first
                # batch.
                initial=self.settings.initial_validation and validates,
            ),
        )

    @property
    def global_batch_size(self) -> int | None:
        """Samples per update; None if neither the data nor the hyperparameters define it."""
        return self.source.batch_size or self.settings.global_batch_size

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch; None while it is unknown because the data has not ended yet."""
        return self.source.steps_per_epoch

    def trainable_variables(self) -> Sequence[Any]:
        """Return the variables that gradients change, as far as they exist."""
        variables: list[Any] = self.trained.model.trainable_variables
        return variables

    def optimizers(self) -> Sequence[Any]:
        """Return the optimizers that change them."""
        return self.trained.optimizers

    def models(self) -> Sequence[Any]:
        """Return the models that are trained, whose layers are reported."""
        return [self.trained.model]

    @property
    def is_ending(self) -> bool:
        """Whether no further batch will be trained, by the current target and stop requests."""
        return bool(self.trained.model.stop_training) or self.progress.is_at_target

    @property
    def was_stopped(self) -> bool:
        """Whether a callback had ended the training when the checkpoint was taken that it resumes from."""
        return self._restored is not None and bool(self._restored.state["stopped"])

    def is_validation_due(self, epoch: int) -> bool:
        """Return whether to validate at the end of `epoch`, from 0; always True without validation data."""
        return self.validator is None or self.validator.is_due(epoch)

    def signature(self) -> Mapping[str, Any]:
        """Return the JSON values that identify the `fit` in a later process; the model must be built."""
        is_length_own = self.core.info is None or self.settings.max_length is None
        return phase_signature(
            epochs=self._arguments.epochs if is_length_own else None,
            initial_epoch=self._first_epoch,
            data=self.source.describe(),
            trainable=[variable.path for variable in self.trained.model.trainable_variables],
            virtual_workers=self.core.distributed.virtual_workers,
        )

    def next_interruption(self, start: int, unit: int) -> int:
        """Return the first batch after `start` at which training is known to be interrupted; see `Training`.

        Interruptions are multiples of `unit`, validations, and the end of training.
        """
        progress, position, target = self.progress, self.progress.position, self.progress.target
        epochs, stops = self.source.epochs, [super().next_interruption(start, unit)]
        period = self._in_batches(self.settings.validation_period)
        if period is not None:
            stops.append(progress.last_validation_batch + period)
        if target.batches is not None:
            stops.append(target.batches)
        if epochs is not None:
            begun = position.batches - position.step
            if self.is_validation_due(position.epoch):
                stops.append(begun + epochs.steps_in(position.epoch))
            if target.epochs is not None:
                stops.append(begun + epochs.start_of(target.epochs) - epochs.start_of(position.epoch))
        return min(stop for stop in stops if stop > start)

    def stop(self) -> None:
        """End training at this boundary."""
        super().stop()
        self.trained.model.stop_training = True

    def save_checkpoint(self, *, final: bool = False) -> None:
        """Save the state of this boundary in the background, unless it is already saved; see `Training`."""
        # Callbacks that Keras runs in threads may still be handling events before this boundary, which belong to
        # their state.
        self.callbacks.flush()
        self.source.settle(self.progress.position.batches)
        if not self.trained.is_complete:
            # Stopped before the first batch: a process that resumes builds the model in the same way.
            self.build(None)
        has_changed = final and (self._changed_after_training() or self.files.has_changed)
        self._save(is_end=final, has_changed=has_changed)

    def prepare_checkpoints(self) -> None:
        """Allocate memory for the copies of all variables in the background; called after the first step."""
        self.trained.complete()
        self.reached.extend()
        if self.core.distributed.is_chief:
            warn_of_stateful_random_ops(self.trained.model)
        super().prepare_checkpoints()

    def resume(self, restored: RestoredState) -> bool:
        """Build the model, compare the script with a checkpoint, set the position; return whether it was the end.

        All other state is restored after the user's callbacks received ``on_train_begin`` and, on a resume within an
        epoch, ``on_epoch_begin``: these hooks may reset their state.

        Raises:
            ModelMismatchError: the script or the model changed.
        """
        state = restored.state
        self.build(restored)
        check_signature(self.phase_index, state["phase"]["signature"], self.signature())
        self.trained.variables.check(restored.variables)
        self.resume_at(state)
        self._restored = restored
        self.files.rewrite(Saved(restored, self.core.distributed))
        self.progress.awaits_state = True
        return bool(state["phase"]["finished"])

    def build(self, found: RestoredState | None) -> None:
        """Create every variable that the first step would create, and trace the step.

        Args:
            found: a checkpoint of this `fit`, of a process that has traced the step; None without one.
        """
        with self.reached.as_traced(None if found is None else Saved(found, self.core.distributed)):
            self.trained.build(self.source.element_spec)

    def note_first_batch(self) -> None:
        """Record the state with which the step is traced, unless it is; called after ``on_train_batch_begin``."""
        model = self.trained.model
        if not model.run_eagerly and next(traced_functions(model), None) is None:
            self.reached.note_traced()

    def restore(self) -> None:
        """Restore everything that the checkpoint has; a second call does nothing."""
        if self._restored is None or not self.progress.awaits_state:
            return
        self._restore(Saved(self._restored, self.core.distributed))

    def restore_end(self, end: RestoredState) -> None:
        """Restore the state after the end of the `fit`, which an earlier process finished.

        The script may predict or draw random numbers before its next training.
        """
        self.trained.variables.check(end.variables)
        saved = Saved(end, self.core.distributed, is_end=True)
        self.files.rewrite(saved)
        for part in (
            self._weights,
            self.reached,
            self._callback_part,
            self._random,
            self._replica,
        ):
            part.restore(saved)

    def close(self) -> None:
        """Release the data; see `DataSource.close`."""
        self.source.close()
        if self.validator is not None:
            self.validator.close()
        # They contain the user's data.
        del self._arguments

    def _count_records(self) -> int | None:
        position = self.progress.position
        records = self.source.records_before(position.epoch, position.step)
        if records is None and self.settings.global_batch_size is not None:
            records = position.batches * self.settings.global_batch_size
        return records

    def _evaluate(self) -> Mapping[str, Any]:
        if self.validator is None:
            return self.progress.training_metrics()
        variables = self.trained.variables
        self.core.train.set_status("validating")
        # Keras resets the metrics for an evaluation. Within an epoch the running training metrics are needed later.
        metrics = variables.copy_metrics() if self.progress.position.step > 0 else None
        with self.workers.averaged():
            logs = self.validator.run(self.trained.model, self.callbacks)
        if metrics is not None:
            variables.assign_metrics(metrics)
        self.core.train.set_status("training")
        return {f"val_{name}": plain_value(value) for name, value in logs.items()}

    def _changed_after_training(self) -> bool:
        """Return whether EMA or a callback's ``on_train_end`` may have changed the weights after the last batch."""
        if getattr(self.trained.model.optimizer, "use_ema", False):
            return True
        return any(changes_weights_at_end(callback) for callback in self.user_callbacks)
