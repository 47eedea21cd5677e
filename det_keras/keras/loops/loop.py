"""A training loop that a script writes by hand, between its first step and its end.

The script runs the loop, so it is the script that calls: for the next epoch, for the next batch, with values to report.
Each call that asks for the next batch is a boundary between two batches, at which the injected callbacks of `fit` act.

A resumed process runs the body of the interrupted epoch from its top. Until the script asks for the batches at which
the earlier process stopped, it is in the part of the body before them: passes that had ended give nothing, and what it
reports is ignored, because the earlier process has reported it. With the first of these batches the state is restored a
second time, so that nothing in that part of the body counts twice. Until then the random streams are those of the begin
of the epoch, so that what the body draws before the batches is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import keras

from det_keras.errors import DetError
from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.data import plan_seed
from det_keras.keras.data.waiting import DataWait
from det_keras.keras.history import FitHistory
from det_keras.keras.loops.passes import (
    Batches,
    Pass,
    PassOptions,
    PassReader,
    batch_of_script,
    num_rows_of,
    seed_of,
)
from det_keras.keras.loops.run import LoopRun
from det_keras.keras.loops.state import LoopCheckpoints, LoopParts, LoopState
from det_keras.keras.loops.tracked import TrackedObjects
from det_keras.keras.loops.values import ReportedValues, result_of
from det_keras.keras.loops.workers import LoopWorkers
from det_keras.keras.private_api import creation_mark, creation_number
from det_keras.keras.training.boundaries.base import Boundary
from det_keras.keras.training.metric_values import LazyMetrics, plain_value
from det_keras.keras.training.phase import (
    PhaseRecord,
    check_data_unchanged,
    check_signature,
    phase_signature,
)
from det_keras.keras.training.position import Position
from det_keras.keras.training.progress import Progress
from det_keras.keras.training.resume import ResumePoint
from det_keras.keras.training.run import TrainingContext

__all__ = ["Loop"]

logger = logging.getLogger(__name__)


class Loop:
    """One loop over epochs, from the point of view of the script; `LoopRun` is that of the injected callbacks.

    Args:
        context: the training context.
        tracked: the objects that it changes.
        epochs: its length in a local run.
        on_nan: what to do if the reported ``loss`` is not finite, as in `fit`.

    Attributes:
        core: the framework-free context.
        settings: the settings from the config.
        progress: the current progress.
        history: the metrics of finished epochs.
    """

    def __init__(
        self, context: TrainingContext, tracked: TrackedObjects, *, epochs: int, on_nan: str
    ) -> None:
        self._context = context
        self.core = context.core
        self.settings = context.settings
        self.history = FitHistory()
        # Keras puts the history into the model as well, and a loop may have any number of models.
        self.history.set_model(SimpleNamespace())
        self.history.on_train_begin()
        phase_index = len(context.phases)
        batches_before = sum(phase.batches for phase in context.phases)
        target = self.settings.first_target(epochs, 0, None, batches_before)
        self.progress = Progress(batches_before, Position(), target)
        self._seed = plan_seed(context.seed, phase_index)
        self._tracked = tracked
        self._workers = LoopWorkers(self.core.distributed, context.shared_step, tracked, self.progress)
        has_own_length = self.core.info is None or self.settings.max_length is None
        self.parts = LoopParts(
            core=self.core,
            settings=self.settings,
            phase_index=phase_index,
            finished_phases=list(context.phases),
            signature=phase_signature(
                epochs=epochs if has_own_length else None,
                initial_epoch=0,
                data={"kind": "loop", "tracked objects": tracked.kinds()},
                trainable=[],
            ),
            tracked=tracked,
            progress=self.progress,
            history=self.history,
            values=ReportedValues(),
            passes={},
            current=None,
            epoch_draws={},
            records=0,
            workers=self._workers,
        )
        self._checkpoints = LoopCheckpoints(self.parts, context.writer, context.code)
        self._run = LoopRun(self.parts, self._checkpoints, on_nan)
        self._run.validated_at = context.validated_at
        self._reading, self._running = ExitStack(), ExitStack()
        self._point: ResumePoint | None = None
        # The state to restore at the batches at which an earlier process stopped; None from there on.
        self._pending_state: LoopState | None = None
        self._created_before_epoch = 0
        self._variables_at_boundary: Collection[int] = ()
        self._in_batch: Pass | None = None
        self._rows = self._all_rows = 1
        # Calls of `batches` without a name in this epoch: of those that train, and of the others.
        self._num_calls = {True: 0, False: 0}
        # Tracked metrics, as they were when one was reported that was not among them.
        self._known_metrics: Collection[int] = ()
        # Reports of this epoch that count as batches, unless the epoch has data.
        self._num_reports = 0
        # The pass of a training that the script is reading.
        self._reading_pass: Pass | None = None
        self._is_cut = False
        self.is_open = False
        self.is_left = False

    # The calls of the script.

    @property
    def trained_batches(self) -> int:
        """Batches trained in the script so far, with the one that the script is at."""
        is_trained = self._in_batch is not None and self._in_batch.options.is_training
        return self.progress.total_batches + int(is_trained)

    def epochs(self, point: ResumePoint | None) -> Iterator[int]:
        """Yield the numbers of the epochs, from 0.

        Args:
            point: the checkpoint of this loop to resume from; None to begin it.
        """
        self._begin(point)
        # Inside of the generator, so that leaving the loop puts the handlers back at once.
        with self._run.signals:
            try:
                while not self._run.is_ending:
                    self._begin_epoch()
                    yield self.progress.position.epoch
                    self._end_epoch()
            except GeneratorExit:
                self.is_left = True
                raise
            self.end()

    def make_batches(
        self, name: str | None, data: tuple[Any, ...], options: PassOptions, reader: Callable[[], PassReader]
    ) -> Batches:
        """Return batches that are told apart by their name, or by the order of the calls in an epoch."""
        key = name
        if key is None:
            # Apart: how often an epoch evaluates must not change the names of its training passes.
            number = self._num_calls[options.is_training]
            key = f"{'batches' if options.is_training else 'evaluation'} {number}"
            self._num_calls[options.is_training] += 1
        return Batches(reader, key, data, options)

    def report(self, values: Mapping[str, Any]) -> None:
        """Add values to the training metrics of the epoch."""
        if self.is_before_position:
            return
        for name, value in values.items():
            # Not at each batch: looking through all layers takes as long as a short step.
            if not isinstance(value, keras.metrics.Metric) or id(value) in self._known_metrics:
                continue
            self._known_metrics = {id(metric) for metric in self._tracked.all_metrics()}
            if id(value) not in self._known_metrics:
                raise ValueError(
                    f"The metric `{name}` is not tracked, and would begin anew in a process that resumes. Pass it to "
                    "`context.track(...)` before the loop."
                )
        self.parts.values.add(values, self._rows)
        self._num_reports += 1

    def report_validation(self, values: Mapping[str, Any]) -> None:
        """Report the result of a validation.

        Raises:
            ValueError: this batch has one already.
        """
        if self.is_before_position:
            return
        self._count_batch()
        self._count_reports()
        if self.progress.current_validation is not None or (
            self._run.validated_at == self.progress.total_batches and self.progress.total_batches
        ):
            raise ValueError(
                f"Batch {self.progress.total_batches} has a validation already. Report all its values in one call of "
                "`report_validation`."
            )
        self._run.record_validation(self._agreed(values))

    def end(self) -> None:
        """End the loop: the next training of the script may begin."""
        if not self.is_open:
            return
        self.is_open = False
        self._workers.average()
        self._run.end()
        self._close()
        batches = self.progress.position.batches
        self._context.validated_at = self._run.validated_at
        self._context.phase_finished(PhaseRecord(self.parts.signature, self.history.get_state(), batches, {}))

    def abandon(self, *, save: bool) -> None:
        """Leave a loop whose script has left it, with `break` or an exception.

        Args:
            save: save a checkpoint of the newest batch.
        """
        if not self.is_open:
            return
        self.is_open = False
        try:
            self._leave_pass()
            if save and (self.parts.current is not None or self.progress.position.step == 0):
                self._checkpoints.save()
                self._checkpoints.wait()
        except Exception:
            # The context is being closed: its other files and reports must not be lost with this checkpoint.
            logger.exception(
                "The loop was left at batch %s, which is not saved.", self.progress.total_batches
            )
        finally:
            self._close()

    def leave(self) -> None:
        """End a loop that the script has left with `break`, because its next training begins."""
        if self.is_open:
            logger.info(
                "The loop was left in epoch %s. What follows is a new training, with the models as they are.",
                self.progress.position.epoch + 1,
            )
            # The script may have prepared its models for the next training since.
            self._tracked.keep_only(self._variables_at_boundary)
            self._leave_pass()
            self.end()

    def skip(self, record: PhaseRecord, end: RestoredState | None) -> None:
        """Skip a loop that an earlier process finished, and restore its end.

        Args:
            record: the finished loop.
            end: the state at its end; None if it has no checkpoint any more.

        Raises:
            ModelMismatchError: the script changed.
        """
        check_signature(self.parts.phase_index, record.signature, self.parts.signature)
        logger.info("An earlier process has finished this loop: it trains nothing again.")
        self.history.load_state(record.history)
        if end is not None:
            self._tracked.build(end.state["loop"]["objects"], end.variables)
            LoopState(self.parts, end).assign(draws_of_epoch=False)
        self._context.phase_finished(record)

    # The passes of the script; see `PassReader`.

    def open_pass(self, batches: Batches) -> Pass:
        """Return the pass of some batches, with its data open."""
        passes = self.parts.passes
        if batches.key not in passes:
            self._add_pass(batches.key)
        data_pass = passes[batches.key]
        data_pass.open(batches.data, batches.options, self._is_made_in_epoch)
        return data_pass

    def begin_pass(self, batches: Batches) -> Pass | None:
        """Return the pass to read; None if it gives nothing more in this epoch."""
        if batches.options.is_training and self._reading_pass is not None:
            raise ValueError(
                f"The batches `{self._reading_pass.key}` are still being read: a position in two passes at once could "
                "not be resumed. Join the data, with `tf.data.Dataset.zip` or as one tuple of arrays."
            )
        self._leave_pass()
        data_pass = self.open_pass(batches)
        if not self._find_place(data_pass):
            return None
        data_pass.is_open = True
        # After the data is open, whose own functions are traced with it.
        self._run.before_tracing()
        if not data_pass.options.is_training:
            self._reading.enter_context(self._workers.averaged())
            return data_pass
        self.parts.current = data_pass.key
        self._num_reports = 0
        self._run.is_after_pass = False
        if self._run.is_ending:
            self._is_cut = True
            return None
        self.core.watch(
            DataWait(data_pass.source, lambda: data_pass.step if self.progress.is_in_epoch else None)
        )
        self._run.plan_boundary()
        self._reading_pass = data_pass
        return data_pass

    def begin_batch(self, data_pass: Pass, batch: Any) -> Any:
        """Return what the script gets of a batch."""
        if self._workers.is_single:
            self._rows = self._all_rows = num_rows_of(batch)
        else:
            batch, counted = batch
            self._rows, self._all_rows = self._workers.begin_batch(counted)
        self._in_batch = data_pass
        return batch_of_script(data_pass.source, batch)

    def end_batch(self, data_pass: Pass) -> bool:
        """Act after a batch, and return whether the pass has more batches to give."""
        self._count_batch()
        if not data_pass.options.is_training:
            return True
        is_last = data_pass.steps is not None and data_pass.step >= data_pass.steps
        if self._run.is_ending:
            self._is_cut = not is_last
            return False
        # After its last batch the loop acts at the end of the epoch, or after the next batch of another pass.
        if not is_last and self._run.is_boundary_due:
            self._visit(Boundary(at_epoch_end=False, logs=LazyMetrics(self._results)))
            if self._run.is_ending:
                self._is_cut = True
                return False
        return True

    def end_pass(self, data_pass: Pass) -> None:
        """Record that a pass has no more batches."""
        self._leave_pass()
        if not data_pass.options.is_training:
            # It may be read again in this epoch.
            data_pass.end_epoch()
        self._run.is_after_pass = self._run.is_after_pass or data_pass.options.is_training

    def leave_pass(self, data_pass: Pass) -> None:
        """Record that nothing more is read of a pass now."""
        if data_pass is self._reading_pass:
            self._reading_pass = None

    # Execution.

    def _begin(self, point: ResumePoint | None) -> None:
        tracked, progress = self._tracked, self.progress
        self.is_open = True
        self._point = point
        if not self.settings.validation_period.is_unlimited or self.settings.initial_validation:
            logger.warning(
                "`min_validation_period` and `perform_initial_validation` have no effect on a loop written by hand: it "
                "decides itself when it calls `context.report_validation`."
            )
        if point is None:
            self._workers.begin(self._context.seed)
        else:
            state = point.restored.state
            check_signature(self.parts.phase_index, state["phase"]["signature"], self.parts.signature)
            tracked.build(state["loop"]["objects"], point.restored.variables)
            self.history.load_state(state["history"])
            self.parts.records = state["loop"]["records"]
            # In their order: the first one has the seed that `fit` would have.
            for name in state["loop"]["passes"]:
                self._add_pass(name)
            progress.position = Position(**state["position"])
            progress.load_state(state)
            progress.is_resumed = True
            if state["validations"]:
                self._run.validated_at = progress.batches_before + progress.last_validation_batch
            self._checkpoints.is_saved()
            self.core.backend.rewind(progress.total_batches)
        self._running.enter_context(self._workers.at_work())
        self._variables_at_boundary = self._variable_ids()
        self._run.begin()
        if point is not None:
            is_in_epoch = progress.position.step > 0
            self._pending_state = self._checkpoint_state()
            self._pending_state.assign(draws_of_epoch=is_in_epoch)
            if is_in_epoch:
                self.parts.epoch_draws = self._pending_state.epoch_draws
            else:
                self._pending_state = None
            self._run.restored()

    def _begin_epoch(self) -> None:
        progress = self.progress
        if self._pending_state is None:
            if progress.position.step:
                # The searcher has made the target longer, inside of an epoch.
                self._pending_state = LoopState(self.parts)
                self._pending_state.assign(draws_of_epoch=True)
            else:
                self.parts.epoch_draws = self.parts.draws()
                self.parts.current = None
        if self._pending_state is not None:
            position = self._pending_state.position
            progress.position = Position(position.epoch, 0, position.batches - position.step)
        self._created_before_epoch = creation_mark()
        self._num_calls = {True: 0, False: 0}
        self._num_reports = 0
        self._is_cut = False
        self._run.plan_boundary()
        progress.is_in_epoch = True

    def _end_epoch(self) -> None:
        progress = self.progress
        if self._pending_state is not None:
            raise DetError(
                f"The checkpoint was taken in the batches `{self._name_of_current()}` of epoch "
                f"{self._pending_state.position.epoch + 1}, and the script has not asked for them. Resume with the "
                "script that wrote the checkpoint, or start from the beginning."
            )
        self._leave_pass()
        self._count_reports()
        if progress.position.step == 0:
            self._advance()
        progress.is_in_epoch = False
        logs = self._results()
        is_whole = not self._is_cut
        if is_whole:
            for data_pass in self.parts.passes.values():
                data_pass.end_epoch()
            self.parts.values.begin_epoch()
            self.parts.current = None
            self._run.is_after_pass = False
            epoch, progress.position = progress.position.epoch, progress.position.next_epoch()
            progress.logs_of_boundary = logs
            if progress.current_validation is None and self.settings.metric in logs:
                # The searcher's metric is one of the training.
                self._run.record_validation(logs)
            validation = progress.current_validation
            self.history.on_epoch_end(epoch, {**logs, **(validation.metrics if validation else {})})
        self._visit(Boundary(at_epoch_end=is_whole, logs=logs))

    def _visit(self, boundary: Boundary) -> None:
        self._variables_at_boundary = self._variable_ids()
        self._run.visit(boundary)

    def _variable_ids(self) -> set[int]:
        return {id(item.variable) for item in self._tracked.variables().tracked}

    def _count_batch(self) -> None:
        """Count the batch that the script has trained, unless it is counted."""
        data_pass, self._in_batch = self._in_batch, None
        if data_pass is None:
            return
        data_pass.step += 1
        self._workers.end_batch(self._rows if data_pass.options.is_training else 0)
        if data_pass.options.is_training:
            self.parts.records += self._all_rows
            self._advance()

    def _count_reports(self) -> None:
        """Count the reports of an epoch that has taken no batches from `batches`."""
        if self.parts.current is None:
            for _ in range(self._num_reports):
                self._advance()
        self._num_reports = 0

    def _add_pass(self, key: str) -> None:
        passes = self.parts.passes
        seed = seed_of(key, self._seed, is_first=not passes)
        passes[key] = Pass(key, seed, self.core.distributed)
        if self._point is not None:
            passes[key].await_state(self._checkpoint_state().pass_state(key))

    def _advance(self) -> None:
        position = self.progress.position
        self.progress.position = position.at_step(position.step + 1)

    def _find_place(self, data_pass: Pass) -> bool:
        """Bring a pass to where it is to be read; return False if it gives nothing more in this epoch."""
        saved, pending, trains = data_pass.take_state(), self._pending_state, data_pass.options.is_training
        if saved is not None:
            if trains:
                check_data_unchanged(
                    self.parts.phase_index, saved.state["describe"], data_pass.source.describe()
                )
            if pending is not None and saved.is_current:
                left = self.progress.epochs_left(data_pass.steps)
                self._reach_position(without=data_pass.resume(saved, epochs_left=left))
                return True
            data_pass.skip(saved)
            if pending is not None and saved.is_open and trains:
                data_pass.mark_read(saved)
                return False
        elif not data_pass.is_open:
            return True
        elif not trains:
            data_pass.end_epoch()
        elif pending is None or not pending.is_from_memory:
            raise ValueError(
                f"The batches `{data_pass.key}` were read in this epoch already. Call `context.batches(...)` again for "
                "another pass, with a name of its own if it has one."
            )
        elif data_pass.key != self.parts.current:
            return False
        else:
            # The epoch continues in this process, because the searcher has made the target longer.
            self._reach_position()
        return True

    def _leave_pass(self) -> None:
        """Count the last batch of the pass that was read, if the script has left it early, and end its effects."""
        self._count_batch()
        self._reading.close()
        self._workers.end_pass()
        self._rows = 1

    def _reach_position(self, without: frozenset[str] = frozenset()) -> None:
        """Restore the state of the batches at which training stopped, now that the script asks for them."""
        state, self._pending_state = self._pending_state, None
        assert state is not None
        state.assign(draws_of_epoch=False, without=without)
        self.progress.position = state.position

    def _checkpoint_state(self) -> LoopState:
        assert self._point is not None
        return LoopState(self.parts, self._point.restored)

    @property
    def is_before_position(self) -> bool:
        """Whether the script is in a part of the epoch that an earlier process has run and reported."""
        return self._pending_state is not None

    def _name_of_current(self) -> str | None:
        if self._point is None:
            return self.parts.current
        passes = self._point.restored.state["loop"]["passes"]
        return next((name for name, state in passes.items() if state["is_current"]), None)

    def _agreed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return validation metrics by the names under which they are reported, the same on all workers."""
        plain: dict[str, Any] = {}
        for name, value in values.items():
            is_metric = isinstance(value, keras.metrics.Metric)
            plain |= result_of(name, value) if is_metric else {name: plain_value(value)}
        plain = self._workers.means(plain)
        return {name if name.startswith("val_") else f"val_{name}": value for name, value in plain.items()}

    def _results(self) -> dict[str, Any]:
        return self.parts.values.results(self._workers.add_up)

    def _is_made_in_epoch(self, dataset: Any) -> bool:
        return creation_number(dataset) > self._created_before_epoch

    def _close(self) -> None:
        self.core.watch(None)
        self._reading.close()
        self._running.close()
        for data_pass in self.parts.passes.values():
            data_pass.close()
