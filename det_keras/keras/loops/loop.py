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
from typing import Any

import keras

from det_keras.errors import DetError
from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.data.waiting import DataWait
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
from det_keras.keras.loops.state import LoopState
from det_keras.keras.loops.tracked import TrackedObjects
from det_keras.keras.loops.values import result_of
from det_keras.keras.private_api import creation_mark, creation_number
from det_keras.keras.script import Script
from det_keras.keras.training.boundaries.base import Boundary
from det_keras.keras.training.metric_values import LazyMetrics, plain_value
from det_keras.keras.training.phase import (
    PhaseRecord,
    check_data_unchanged,
    check_signature,
)
from det_keras.keras.training.position import Position

logger = logging.getLogger(__name__)


class Loop:
    """One loop over epochs, from the point of view of the script.

    Args:
        script: the trainings of the script.
        tracked: the objects that it changes.
        epochs: its length in a local run.
        on_nan: what to do if the reported ``loss`` is not finite, as in `fit`.

    Attributes:
        run: the training.
        is_open: whether the script iterates over its epochs.
        is_left: whether the script has left it with `break`.
    """

    def __init__(self, script: Script, tracked: TrackedObjects, *, epochs: int, on_nan: str) -> None:
        self._script = script
        self.run = LoopRun(script, tracked, epochs=epochs, on_nan=on_nan)
        self._progress = self.run.progress
        self._tracked = tracked
        self._workers = self.run.workers
        self._data = self.run.data
        self._reading, self._running = ExitStack(), ExitStack()
        self._restored: RestoredState | None = None
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
        return self._progress.total_batches + int(is_trained)

    def epochs(self, restored: RestoredState | None) -> Iterator[int]:
        """Yield the numbers of the epochs, from 0.

        Args:
            restored: the checkpoint of this loop to resume from; None to begin it.
        """
        self._begin(restored)
        # Inside of the generator, so that leaving the loop puts the handlers back at once.
        with self.run.signals:
            try:
                while not self.run.is_ending:
                    self._begin_epoch()
                    yield self._progress.position.epoch
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
        if self.is_repeating:
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
        self.run.values.add(values, self._rows)
        self._num_reports += 1

    def report_validation(self, values: Mapping[str, Any]) -> None:
        """Report the result of a validation.

        Raises:
            ValueError: this batch has one already.
        """
        if self.is_repeating:
            return
        self._count_batch()
        self._count_reports()
        if self._progress.current_validation is not None or (
            self._script.validated_at == self._progress.total_batches and self._progress.total_batches
        ):
            raise ValueError(
                f"Batch {self._progress.total_batches} has a validation already. Report all its values in one call of "
                "`report_validation`."
            )
        self.run.record_validation(self._agreed(values))

    def end(self) -> None:
        """End the loop: the next training of the script may begin."""
        if not self.is_open:
            return
        self.is_open, self._script.running = False, None
        self._workers.average()
        self.run.end()
        self._close()
        self.run.finish({})

    def abandon(self, *, save: bool) -> None:
        """Leave a loop whose script has left it, with `break` or an exception.

        Args:
            save: save a checkpoint of the newest batch.
        """
        if not self.is_open:
            return
        self.is_open, self._script.running = False, None
        try:
            self._leave_pass()
            if save and (self._data.current is not None or self._progress.position.step == 0):
                self.run.save_and_wait()
        except Exception:
            # The context is being closed: its other files and reports must not be lost with this checkpoint.
            logger.exception(
                "The loop was left at batch %s, which is not saved.", self._progress.total_batches
            )
        finally:
            self._close()

    def leave(self) -> None:
        """End a loop that the script has left with `break`, because its next training begins."""
        if self.is_open:
            logger.info(
                "The loop was left in epoch %s. What follows is a new training, with the models as they are.",
                self._progress.position.epoch + 1,
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
        check_signature(self.run.phase_index, record.signature, self.run.signature())
        logger.info("An earlier process has finished this loop: it trains nothing again.")
        self.run.history.load_state(record.history)
        if end is not None:
            self._tracked.build(end.state["loop"]["objects"], end.variables)
            self.run.state(end).restore(draws_of_epoch=False)
        self._script.phase_finished(record)

    def model_to_warm_start(self) -> Any:
        """Return the first tracked model; None without one."""
        models = (layer for layer in self._tracked.layers.values() if isinstance(layer, keras.Model))
        return next(models, None)

    # The passes of the script; see `PassReader`.

    def open_pass(self, batches: Batches) -> Pass:
        """Return the pass of some batches, with its data open."""
        passes = self._data.passes
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
        self.run.before_tracing()
        if not data_pass.options.is_training:
            self._reading.enter_context(self._workers.averaged())
            return data_pass
        self._data.current = data_pass.key
        self._num_reports = 0
        self.run.is_after_pass = False
        if self.run.is_ending:
            self._is_cut = True
            return None
        self.run.core.watch(
            DataWait(data_pass.source, lambda: data_pass.step if self._progress.is_in_epoch else None)
        )
        self.run.enter_epoch()
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
        if self.run.is_ending:
            self._is_cut = not is_last
            return False
        # After its last batch the loop acts at the end of the epoch, or after the next batch of another pass.
        if not is_last and self.run.is_boundary_due:
            self._visit(Boundary(at_epoch_end=False, logs=LazyMetrics(self._results)))
            if self.run.is_ending:
                self._is_cut = True
                return False
        return True

    def end_pass(self, data_pass: Pass) -> None:
        """Record that a pass has no more batches."""
        self._leave_pass()
        if not data_pass.options.is_training:
            # It may be read again in this epoch.
            data_pass.end_epoch()
        self.run.is_after_pass = self.run.is_after_pass or data_pass.options.is_training

    def leave_pass(self, data_pass: Pass) -> None:
        """Record that nothing more is read of a pass now."""
        if data_pass is self._reading_pass:
            self._reading_pass = None

    # Execution.

    def _begin(self, restored: RestoredState | None) -> None:
        run, settings = self.run, self.run.settings
        self.is_open = True
        self._script.running = self
        self._restored = restored
        if not settings.validation_period.is_unlimited or settings.initial_validation:
            logger.warning(
                "`min_validation_period` and `perform_initial_validation` have no effect on a loop written by hand: it "
                "decides itself when it calls `context.report_validation`."
            )
        if restored is None:
            self._workers.begin(self._script.seed)
        else:
            state = restored.state
            check_signature(run.phase_index, state["phase"]["signature"], run.signature())
            self._tracked.build(state["loop"]["objects"], restored.variables)
            # In their order: the first one has the seed that `fit` would have.
            for name in state["loop"]["passes"]:
                self._add_pass(name)
            run.resume_at(state)
        self._running.enter_context(self._workers.at_work())
        self._variables_at_boundary = self._variable_ids()
        run.boundaries.begin()
        if restored is not None:
            is_in_epoch = self._progress.position.step > 0
            self._pending_state = run.state(restored)
            self._pending_state.restore(draws_of_epoch=is_in_epoch)
            if is_in_epoch:
                run.draws.of_epoch = self._pending_state.epoch_draws
            else:
                self._pending_state = None
            run.boundaries.restored()

    def _begin_epoch(self) -> None:
        progress = self._progress
        if self._pending_state is None:
            if progress.position.step:
                # The searcher has made the target longer, inside of an epoch.
                self._pending_state = self.run.state()
                self._pending_state.restore(draws_of_epoch=True)
            else:
                self.run.draws.begin_epoch()
                self._data.current = None
        if self._pending_state is not None:
            position = self._pending_state.position
            self._progress.position = Position(position.epoch, 0, position.batches - position.step)
        self._created_before_epoch = creation_mark()
        self._num_calls = {True: 0, False: 0}
        self._num_reports = 0
        self._is_cut = False
        self.run.enter_epoch()

    def _end_epoch(self) -> None:
        progress = self._progress
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
        self.run.progress.is_in_epoch = False
        logs = self._results()
        is_whole = not self._is_cut
        if is_whole:
            for data_pass in self._data.passes.values():
                data_pass.end_epoch()
            self.run.values.begin_epoch()
            self._data.current = None
            self.run.is_after_pass = False
            epoch = progress.position.epoch
            self.run.progress.end_epoch(logs)
            if progress.current_validation is None and self.run.settings.metric in logs:
                # The searcher's metric is one of the training.
                self.run.record_validation(logs)
            validation = progress.current_validation
            self.run.history.on_epoch_end(epoch, {**logs, **(validation.metrics if validation else {})})
        self._visit(Boundary(at_epoch_end=is_whole, logs=logs))

    def _visit(self, boundary: Boundary) -> None:
        self._variables_at_boundary = self._variable_ids()
        self.run.visit(boundary)

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
            self._data.records += self._all_rows
            self._advance()

    def _count_reports(self) -> None:
        """Count the reports of an epoch that has taken no batches from `batches`."""
        if self._data.current is None:
            for _ in range(self._num_reports):
                self._advance()
        self._num_reports = 0

    def _add_pass(self, key: str) -> None:
        passes = self._data.passes
        seed = seed_of(key, self.run.seed, is_first=not passes)
        passes[key] = Pass(key, seed, self.run.core.distributed)
        if self._restored is not None:
            passes[key].await_state(self.run.state(self._restored).pass_state(key))

    def _advance(self) -> None:
        position = self._progress.position
        self._progress.position = position.at_step(position.step + 1)

    def _find_place(self, data_pass: Pass) -> bool:
        """Bring a pass to where it is to be read; return False if it gives nothing more in this epoch."""
        saved, pending, trains = data_pass.take_state(), self._pending_state, data_pass.options.is_training
        if saved is not None:
            if trains:
                check_data_unchanged(
                    self.run.phase_index, saved.state["describe"], data_pass.source.describe()
                )
            if pending is not None and saved.is_current:
                left = self._progress.epochs_left(data_pass.steps)
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
        elif data_pass.key != self._data.current:
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
        state.restore(draws_of_epoch=False, without=without)
        self._progress.position = state.position

    @property
    def is_repeating(self) -> bool:
        """Whether the script is in a part of the epoch that an earlier process has run and reported."""
        return self._pending_state is not None

    def _name_of_current(self) -> str | None:
        if self._restored is None:
            return self._data.current
        passes = self._restored.state["loop"]["passes"]
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
        return self.run.values.results(self._workers.add_up)

    def _is_made_in_epoch(self, dataset: Any) -> bool:
        return creation_number(dataset) > self._created_before_epoch

    def _close(self) -> None:
        self.run.core.watch(None)
        self._reading.close()
        self._running.close()
        for data_pass in self._data.passes.values():
            data_pass.close()
