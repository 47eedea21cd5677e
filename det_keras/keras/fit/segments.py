"""Runs a training in segments, each one `model.fit`, and acts at the boundaries between batches.

A training is divided where one `model.fit` cannot represent it: after the rest of an interrupted epoch, and at an
exact last batch. The callback list hides the segments from the user's callbacks.
"""

from __future__ import annotations

from typing import Any

from det_keras.keras.fit.run import FitRun
from det_keras.keras.private_api.fit_call import keras_fit
from det_keras.keras.private_api.steps import metric_results
from det_keras.keras.training.boundaries.base import Boundary
from det_keras.keras.training.position import Segment, next_segment


class SegmentRunner:
    """Trains from the current position to the target; receives Keras's events as a `SegmentListener`.

    Args:
        run: the `fit`.
    """

    def __init__(self, run: FitRun) -> None:
        self._run = run
        self._model = run.trained.model
        self._source = run.source
        self._progress = run.progress
        self._workers = run.workers
        self._segment = Segment(0, 0)
        self._segment_start = self._progress.position
        self._carried_metrics: Any = None

    def train(self) -> None:
        """Train to the target, or until a callback or a request ends the training."""
        run, progress = self._run, self._progress
        if progress.awaits_state and progress.position.step == 0:
            self._restore()
        if run.was_stopped:
            run.stop()
        while not progress.is_stopped:
            segment = self._next_segment()
            if segment is None:
                break
            self._train_segment(segment)
            if self._model.stop_training:
                run.stop()
        # If nothing was left to train, no epoch has restored the state. Otherwise this does nothing.
        run.restore()

    def epoch_begins(self, epoch: int) -> bool:
        """Prepare an epoch for the segment that Keras begins; see `SegmentListener`."""
        segment = self._segment
        first = segment.first_step if epoch == segment.first_epoch else 0
        self._segment_start = self._progress.position
        if not self._progress.awaits_state:
            self._source.begin_epoch(epoch, first, segment.stop_step)
        return self._carried_metrics is None

    def epoch_begun(self) -> None:
        """Restore what Keras resets at each of its epochs; see `SegmentListener`."""
        if self._carried_metrics is not None:
            self._run.trained.variables.assign_metrics(self._carried_metrics)
            self._carried_metrics = None
        elif self._progress.awaits_state:
            self._restore()
            position = self._progress.position
            self._source.begin_epoch(position.epoch, position.step, self._segment.stop_step)
        self._run.enter_epoch()

    def batch_trained(self, step: int) -> None:
        """Note a batch whose callbacks are about to be called; see `SegmentListener`."""
        self._progress.ended_batch = self._segment_start.batches + step

    def batch_ended(self, step: int, logs: Any) -> None:
        """Act at the boundary after a batch if a boundary callback requested it; see `SegmentListener`."""
        start, segment = self._segment_start, self._segment
        done = segment.num_batches
        if done is not None and step >= done:
            # `epoch_ended` visits the boundary at the segment's end, after the validation if the epoch ends too.
            self._progress.position = start.at_step(start.step + done)
            return
        self._progress.position = start.at_step(start.step + step)
        wants_boundary = self._workers.exchange_stop_flags(
            leave=self._run.is_asked_to_stop, end=self._model.stop_training
        )
        if wants_boundary or self._run.boundaries.is_due:
            self._run.visit(Boundary(at_epoch_end=False, logs=self._workers.metrics(logs)))

    def epoch_ended(self, epoch: int, logs: dict[str, Any]) -> None:
        """End an epoch, or only the segment where the epoch continues; see `SegmentListener`."""
        run, progress, model = self._run, self._progress, self._model
        run.progress.is_in_epoch = False
        model.stop_training = self._workers.agree_to_end(model.stop_training)
        if self._is_part_of_epoch():
            run.visit(Boundary(at_epoch_end=False, logs=logs))
            self._carried_metrics = run.trained.variables.copy_metrics()
            return
        if progress.position.step == 0:
            raise ValueError(
                f"Epoch {epoch + 1} had no batch: the training data is empty, or gave all of it in an earlier epoch."
            )
        self._source.end_epoch(epoch)
        self._source.settle(progress.position.batches)
        if model.stop_training:
            # A callback may revoke the stop at the end of this epoch.
            self._source.leave_epoch()
        if progress.position == self._segment_start:
            # The length of the epoch was unknown, and the checkpoint was taken after its last batch: this process
            # trained no batch of it and uses the metrics of the checkpoint.
            logs = metric_results(model, dict(progress.logs_of_boundary))
        run.progress.end_epoch(logs)
        if run.is_validation_due(epoch):
            validation = progress.current_validation or run.validate()
            if run.validator is not None:
                logs.update(validation.metrics)
        # Copy the logs: callbacks may add to them, and Keras's `on_train_end` does not get these additions.
        run.progress.logs_of_epoch = dict(logs)
        run.callbacks.end_epoch(epoch, logs)
        run.visit(Boundary(at_epoch_end=True, logs=logs))

    def _next_segment(self) -> Segment | None:
        progress, epochs = self._progress, self._source.epochs
        if epochs is None:
            return next_segment(progress.position, progress.target, None)
        steps = epochs.steps_in(progress.position.epoch)
        return next_segment(progress.position, progress.target, steps, are_equal=epochs.are_equal)

    def _train_segment(self, segment: Segment) -> None:
        self._segment = segment
        self._run.callbacks.begin_segment(segment.first_step, self)
        # Not `model.fit`: what others have put before it sees one call for the whole training.
        keras_fit()(
            self._model,
            self._source.dataset(segment.num_batches),
            initial_epoch=segment.first_epoch,
            epochs=segment.stop_epoch,
            callbacks=self._run.callbacks,
            shuffle=False,
            verbose=0,
        )

    def _restore(self) -> None:
        self._run.restore()
        self._run.boundaries.restored()

    def _is_part_of_epoch(self) -> bool:
        """Return whether the segment that ended is followed by more of the same epoch."""
        step = self._progress.position.step
        if self._model.stop_training or self._segment.stop_step is None:
            return False
        if self._source.epochs is not None:
            return step < self._source.epochs.steps_in(self._progress.position.epoch)
        # An epoch of unknown length continues unless the data ended before the end of the segment.
        return step >= self._segment.stop_step
