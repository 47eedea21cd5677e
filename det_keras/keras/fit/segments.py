"""Runs a training in segments, each one `model.fit`, and acts at the boundaries between batches.

A training is divided where one `model.fit` cannot represent it: after the rest of an interrupted epoch, and at an
exact last batch. The callback list hides the segments from the user's callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from det_keras.keras.fit.callback_list import SeamlessCallbackList
from det_keras.keras.fit.parts import FitParts
from det_keras.keras.fit.resume_plan import ResumePlan
from det_keras.keras.private_api import metric_results
from det_keras.keras.training.boundaries.base import Boundary, InjectedCallback
from det_keras.keras.training.position import Segment, next_segment
from det_keras.keras.training.run import Run

__all__ = ["SegmentRunner"]

_NEVER = 1 << 62


class SegmentRunner:
    """Trains from the current position to the target; receives Keras's events as a `SegmentListener`.

    Args:
        run: the `fit`, as it is passed to injected callbacks.
        parts: the parts of the same `fit`.
        callbacks: the callback list that is passed to Keras.
        injected: the injected callbacks, in the order in which they act at boundaries.
        plan: the state to restore; None to begin a phase.
        is_asked_to_stop: returns whether this process was asked to stop.
    """

    def __init__(
        self,
        run: Run,
        parts: FitParts,
        callbacks: SeamlessCallbackList,
        injected: Sequence[InjectedCallback],
        plan: ResumePlan | None,
        is_asked_to_stop: Callable[[], bool],
    ) -> None:
        self._run = run
        self._trained = parts.trained
        self._model = parts.trained.model
        self._source = parts.source
        self._progress = parts.progress
        self._team = parts.team
        self._validations = parts.validations
        self._callbacks = callbacks
        self._injected = injected
        self._plan = plan
        self._is_asked_to_stop = is_asked_to_stop
        self._segment = Segment(0, 0)
        self._segment_start = self._progress.position
        self._carried_metrics: Any = None
        self._next_batch = _NEVER

    def train(self) -> None:
        """Train to the target, or until a callback or a request ends the training."""
        progress, plan = self._progress, self._plan
        if plan is not None and not plan.is_in_mid_epoch:
            self._restore(plan)
        if plan is not None and plan.was_stopped:
            progress.is_stopped = True
        while not progress.is_stopped:
            segment = self._next_segment()
            if segment is None:
                break
            self._train_segment(segment)
            progress.is_stopped = progress.is_stopped or self._model.stop_training
        if plan is not None:
            # If nothing was left to train, no epoch has restored the state. Otherwise this does nothing.
            plan.restore()

    def epoch_begins(self, epoch: int) -> bool:
        """Prepare an epoch for the segment that Keras begins; see `SegmentListener`."""
        segment = self._segment
        first = segment.first_step if epoch == segment.first_epoch else 0
        self._segment_start = self._progress.position
        is_begun = self._carried_metrics is not None
        if not (self._plan is not None and first > 0 and not is_begun):
            self._source.begin_epoch(epoch, first, segment.stop_step)
        return not is_begun

    def epoch_begun(self) -> None:
        """Restore what Keras resets at each of its epochs; see `SegmentListener`."""
        if self._carried_metrics is not None:
            self._trained.variables.assign_metrics(self._carried_metrics)
            self._carried_metrics = None
        elif self._plan is not None and self._plan.is_in_mid_epoch and self._segment.first_step > 0:
            self._restore(self._plan)
            position = self._progress.position
            self._source.begin_epoch(position.epoch, position.step, self._segment.stop_step)
        self._plan_boundary()
        self._progress.is_in_epoch = True

    def batch_trained(self, step: int) -> None:
        """Note a batch whose callbacks are about to be called; see `SegmentListener`."""
        self._progress.ended_batch = self._segment_start.batches + step

    def batch_ended(self, step: int, logs: Any) -> None:
        """Act at the boundary after a batch if an injected callback requested it; see `SegmentListener`."""
        start, segment = self._segment_start, self._segment
        done = segment.num_batches
        if done is not None and step >= done:
            # `epoch_ended` visits the boundary at the segment's end, after the validation if the epoch ends too.
            self._progress.position = start.at_step(start.step + done)
            return
        self._progress.position = start.at_step(start.step + step)
        wants_boundary = self._team.exchange_stop_flags(
            leave=self._is_asked_to_stop(), end=self._model.stop_training
        )
        if wants_boundary or self._progress.position.batches >= self._next_batch:
            self._visit_boundary(Boundary(at_epoch_end=False, logs=self._team.metrics(logs)))

    def epoch_ended(self, epoch: int, logs: dict[str, Any]) -> None:
        """End an epoch, or only the segment where the epoch continues; see `SegmentListener`."""
        progress, model = self._progress, self._model
        progress.is_in_epoch = False
        model.stop_training = self._team.agree_to_end(model.stop_training)
        if self._is_part_of_epoch():
            self._visit_boundary(Boundary(at_epoch_end=False, logs=logs))
            self._carried_metrics = self._trained.variables.copy_metrics()
            return
        if progress.position.step == 0:
            raise ValueError(
                f"Epoch {epoch + 1} had no batch: the training data is empty, or gave all of it in an earlier epoch."
            )
        self._source.end_epoch(epoch)
        if model.stop_training:
            # A callback may revoke the stop at the end of this epoch.
            self._source.leave_epoch()
        if progress.position == self._segment_start:
            # The length of the epoch was unknown, and the checkpoint was taken after its last batch: this process
            # trained no batch of it and uses the metrics of the checkpoint.
            logs = metric_results(model, dict(progress.logs_of_boundary))
        progress.position = progress.position.next_epoch()
        progress.logs_of_boundary = logs
        if self._validations.is_due(epoch):
            validation = progress.current_validation or self._run.validate()
            if self._validations.has_data:
                logs.update(validation.metrics)
        # Copy the logs: callbacks may add to them, and Keras's `on_train_end` does not get these additions.
        progress.logs_of_epoch = dict(logs)
        self._callbacks.end_epoch(epoch, logs)
        self._visit_boundary(Boundary(at_epoch_end=True, logs=logs))

    def _next_segment(self) -> Segment | None:
        progress, epochs = self._progress, self._source.epochs
        if epochs is None:
            return next_segment(progress.position, progress.target, None)
        steps = epochs.steps_in(progress.position.epoch)
        return next_segment(progress.position, progress.target, steps, are_equal=epochs.are_equal)

    def _train_segment(self, segment: Segment) -> None:
        self._segment = segment
        self._callbacks.begin_segment(segment.first_step, self)
        self._model.fit(
            self._source.dataset(segment.num_batches),
            initial_epoch=segment.first_epoch,
            epochs=segment.stop_epoch,
            callbacks=self._callbacks,
            shuffle=False,
            verbose=0,
        )

    def _restore(self, plan: ResumePlan) -> None:
        plan.restore()
        for callback in self._injected:
            callback.on_restored(self._run)

    def _visit_boundary(self, boundary: Boundary) -> None:
        self._progress.logs_of_boundary = boundary.logs
        for callback in self._injected:
            callback.on_boundary(self._run, boundary)
        self._plan_boundary()

    def _plan_boundary(self) -> None:
        requested = [callback.next_batch(self._run) for callback in self._injected]
        self._next_batch = min((batch for batch in requested if batch is not None), default=_NEVER)

    def _is_part_of_epoch(self) -> bool:
        """Return whether the segment that ended is followed by more of the same epoch."""
        step = self._progress.position.step
        if self._model.stop_training or self._segment.stop_step is None:
            return False
        if self._source.epochs is not None:
            return step < self._source.epochs.steps_in(self._progress.position.epoch)
        # An epoch of unknown length continues unless the data ended before the end of the segment.
        return step >= self._segment.stop_step
