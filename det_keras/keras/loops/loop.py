"""A training loop that a script writes by hand, between its first step and its end.

The script runs the loop, so it is the script that calls: for the next epoch, for the next batch, with values to report.
Each call that asks for the next batch is a boundary between two batches, at which the boundary callbacks act.

A resumed process runs the body of the interrupted epoch from its top. Until the script asks for the batches at which
the earlier process stopped, it is in the part of the body before them: passes that had ended give nothing, and what it
reports is ignored, because the earlier process has reported it. With the first of these batches the state is restored a
second time, so that nothing in that part of the body counts twice. Until then the random streams are those of the begin
of the epoch, so that what the body draws before the batches is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from types import FrameType
from typing import Any

import keras

from det_keras.errors import DetError
from det_keras.keras.checkpoint.reach import variables_of
from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.loops.leaving import LeavingError
from det_keras.keras.loops.reading import Reading
from det_keras.keras.loops.run import LoopRun
from det_keras.keras.loops.tracked import TrackedObjects
from det_keras.keras.loops.values import result_of
from det_keras.keras.script import Script
from det_keras.keras.training.boundaries.base import Boundary
from det_keras.keras.training.metric_values import plain_value
from det_keras.keras.training.phase import PhaseRecord, check_signature, error_of_rank
from det_keras.keras.training.position import Position

logger = logging.getLogger(__name__)


class Loop:
    """One loop over epochs, from the point of view of the script.

    Args:
        script: the trainings of the script.
        tracked: the objects that it changes.
        frame: of the code that called for it.
        epochs: its length in a local run.
        on_nan: what to do if the reported ``loss`` is not finite, as in `fit`.

    Attributes:
        run: the training.
        reading: what the script reads.
        is_open: whether the script iterates over its epochs.
        is_left: whether the script has left it, with `break` or an exception.
    """

    def __init__(
        self, script: Script, tracked: TrackedObjects, frame: FrameType, *, epochs: int, on_nan: str
    ) -> None:
        self._script = script
        self.run = LoopRun(script, tracked, variables_of(frame), epochs=epochs, on_nan=on_nan)
        self._progress = self.run.progress
        self._tracked = tracked
        self._workers = self.run.workers
        self._data = self.run.data
        self.reading = Reading(self.run)
        self._frame = frame
        self._leaving: LeavingError | None = None
        self._running = ExitStack()
        # Tracked metrics, as they were when one was reported that was not among them.
        self._known_metrics: Collection[int] = ()
        self.is_open = False
        self.is_left = False

    # The calls of the script.

    @property
    def trained_batches(self) -> int:
        """Batches trained in the script so far, with the one that the script is at."""
        is_trained = self.reading.in_batch is not None and self.reading.in_batch.options.is_training
        return self._progress.total_batches + int(is_trained)

    def epochs(self, restored: RestoredState | None) -> Iterator[int]:
        """Yield the numbers of the epochs, from 0.

        Args:
            restored: the checkpoint of this loop to resume from; None to begin it.
        """
        if restored is not None and restored.state["phase"]["finished"]:
            self._end_again(restored)
            return
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
                self.reading.leave()
                self.run.data.note_end()
                self.run.leave()
                self._leaving = LeavingError(self._frame)
                raise
            self.end()

    def _end_again(self, left: RestoredState) -> None:
        """Leave the loop as the script did in an earlier process, which ended before its next training."""
        run, state = self.run, left.state
        check_signature(run.phase_index, state["phase"]["signature"], run.signature())
        self._tracked.build(state["loop"]["objects"], left.variables)
        run.resume_at(state)
        run.state(left).restore(draws_of_epoch=False)
        if raised := state["phase"]["raised"]:
            error = error_of_rank(raised, run.core.distributed.rank)
            run.fail(error)
            raise error
        self._workers.average()
        run.finish({})

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
        self.run.values.add(values, self.reading.rows)
        self.reading.num_reports += 1

    def report_validation(self, values: Mapping[str, Any]) -> None:
        """Report the result of a validation.

        Raises:
            ValueError: this batch has one already.
        """
        if self.is_repeating:
            return
        self.reading.count_batch()
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
        self._data.note_end()
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
        self._error()
        try:
            self.reading.leave()
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
        """End a loop that the script has left, because its next training begins."""
        if self.is_open:
            logger.info(
                "The loop was left in epoch %s. What follows is a new training, with the models as they are.",
                self._progress.position.epoch + 1,
            )
            self.is_open, self._script.running = False, None
            error = self._error()
            if error is None:
                self._workers.average()
            self.run.end_left(error)
            self._close()

    def _error(self) -> BaseException | None:
        """Return the exception with which the script has left the loop, and which it has caught since."""
        if self._leaving is None:
            return None
        self._leaving.stop()
        error = self._leaving.error
        return None if isinstance(error, SystemExit | DetError) else error

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
            self.run.state(end).restore(draws_of_epoch=False, is_end=True)
            if record.raised is None:
                # A loop that was left with `break` has the statistics of each worker.
                self._workers.average()
        self._script.phase_finished(record)

    def model_to_warm_start(self) -> Any:
        """Return the first tracked model; None without one."""
        models = (layer for layer in self._tracked.layers.values() if isinstance(layer, keras.Model))
        return next(models, None)

    # Execution.

    def _begin(self, restored: RestoredState | None) -> None:
        run, settings = self.run, self.run.settings
        self.is_open = True
        self._script.running = self
        self.reading.restored = restored
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
                self.reading.add_pass(name)
            run.resume_at(state)
        self._running.enter_context(self._workers.at_work())
        self._running.enter_context(self.run.files.watching())
        run.boundaries.begin()
        if restored is not None:
            is_in_epoch = self._progress.position.step > 0
            self.reading.pending = run.state(restored)
            self.reading.pending.restore(draws_of_epoch=is_in_epoch)
            if is_in_epoch:
                run.draws.of_epoch = self.reading.pending.epoch_draws
            else:
                self.reading.pending = None
            run.boundaries.restored()

    def _begin_epoch(self) -> None:
        progress = self._progress
        if self.reading.pending is None:
            if progress.position.step:
                # The searcher has made the target longer, inside of an epoch.
                self.reading.pending = self.run.state()
                self.reading.pending.restore(draws_of_epoch=True)
            else:
                self.run.draws.begin_epoch()
                self._data.current = None
        if self.reading.pending is not None:
            position = self.reading.pending.position
            self._progress.position = Position(position.epoch, 0, position.batches - position.step)
        self.reading.begin_epoch()
        self.run.enter_epoch()

    def _end_epoch(self) -> None:
        progress = self._progress
        if self.reading.pending is not None:
            raise DetError(
                f"The checkpoint was taken in the batches `{self._name_of_current()}` of epoch "
                f"{self.reading.pending.position.epoch + 1}, and the script has not asked for them. Resume with the "
                "script that wrote the checkpoint, or start from the beginning."
            )
        self.reading.leave()
        self._count_reports()
        if progress.position.step == 0:
            self._progress.advance()
        self.run.progress.is_in_epoch = False
        logs = self.run.results()
        is_whole = not self.reading.is_cut
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
        self.run.visit(Boundary(at_epoch_end=is_whole, logs=logs))

    def _count_reports(self) -> None:
        """Count the reports of an epoch that has taken no batches from `batches`."""
        if self._data.current is None:
            for _ in range(self.reading.num_reports):
                self._progress.advance()
        self.reading.num_reports = 0

    @property
    def is_repeating(self) -> bool:
        """Whether the script is in a part of the epoch that an earlier process has run and reported."""
        return self.reading.pending is not None

    def _name_of_current(self) -> str | None:
        if self.reading.restored is None:
            return self._data.current
        passes = self.reading.restored.state["loop"]["passes"]
        return next((name for name, state in passes.items() if state["is_current"]), None)

    def _agreed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return validation metrics by the names under which they are reported, the same on all workers."""
        plain: dict[str, Any] = {}
        for name, value in values.items():
            is_metric = isinstance(value, keras.metrics.Metric)
            plain |= result_of(name, value) if is_metric else {name: plain_value(value)}
        plain = self._workers.means(plain)
        return {name if name.startswith("val_") else f"val_{name}": value for name, value in plain.items()}

    def _close(self) -> None:
        self.reading.close()
        self._running.close()
