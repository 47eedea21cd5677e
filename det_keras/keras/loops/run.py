"""The boundaries of a loop written by hand: what happens there, through the injected callbacks of `fit`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from det_keras.config import Unit
from det_keras.core.preempt import StopSignals
from det_keras.keras.checkpoint.random_ops import warn_of_random_functions
from det_keras.keras.fit.validations import is_best_validation
from det_keras.keras.loops.passes import Pass
from det_keras.keras.loops.state import LoopCheckpoints, LoopParts
from det_keras.keras.private_api import traced_names
from det_keras.keras.training.boundaries.base import Boundary, InjectedCallback
from det_keras.keras.training.boundaries.checkpoint import CheckpointCallback
from det_keras.keras.training.boundaries.metrics import MetricsCallback
from det_keras.keras.training.boundaries.preemption import PreemptionCallback
from det_keras.keras.training.boundaries.progress import ProgressCallback
from det_keras.keras.training.boundaries.searcher import SearcherCallback
from det_keras.keras.training.boundaries.workers import DivergenceCallback
from det_keras.keras.training.progress import Validation

__all__ = ["LoopRun"]

logger = logging.getLogger(__name__)

_NEVER = 1 << 62


class LoopRun:
    """A loop from the point of view of the injected callbacks: the protocol `Run`, and the calls of these callbacks.

    Args:
        parts: the parts of the loop.
        checkpoints: saves its checkpoints.
        on_nan: what to do if the reported ``loss`` is not finite, as in `fit`.

    Attributes:
        core: the framework-free context.
        settings: the settings from the config.
        progress: the current progress.
        signals: the signals that ask this process to stop.
        is_after_pass: whether the data of this epoch was read to its end, and nothing was begun since.
        validated_at: batches trained in the script at its newest validation; None before the first.
    """

    def __init__(self, parts: LoopParts, checkpoints: LoopCheckpoints, on_nan: str) -> None:
        self.core = parts.core
        self.settings = parts.settings
        self.progress = parts.progress
        self.signals = StopSignals()
        self.is_after_pass = False
        self.validated_at: int | None = None
        self._parts = parts
        self._workers = parts.workers
        self._checkpoints = checkpoints
        self._preemption = PreemptionCallback(self.signals)
        self._injected = self._inject(on_nan)
        self._next_batch = _NEVER
        self._traced_before: Collection[str] = ()

    @property
    def global_batch_size(self) -> int | None:
        """Samples per update; None if neither the data nor the hyperparameters define it."""
        sizes = (data_pass.source.batch_size for data_pass in self._trained_passes())
        return next((size for size in sizes if size), self.settings.global_batch_size)

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch that are trained on; None while it is unknown."""
        steps = [data_pass.steps for data_pass in self._trained_passes()]
        return sum(number or 0 for number in steps) if steps and None not in steps else None

    @property
    def is_ending(self) -> bool:
        """Whether no further batch will be trained, by the current target and stop requests."""
        return self.progress.is_stopped or self.progress.is_at_target

    def counters(self) -> dict[str, Any]:
        """Return the counts of trained batches, epochs and records, which are added to every report."""
        epochs = self.progress.position.epoch + int(self.is_after_pass)
        counters = {"batches": self.progress.total_batches, "epochs": epochs}
        if self._parts.records and self._parts.phase_index == 0:
            counters["records"] = self._parts.records
        return counters

    def next_interruption(self, start: int, unit: int) -> int:
        """Return the first multiple of `unit` after `start`: a loop has no callbacks with workloads."""
        return (start // unit + 1) * unit

    def should_stop(self) -> bool:
        """Return whether the master or a signal asked the workers to stop; the answer is the same on all of them."""
        return self._workers.any(self.is_asked_to_stop)

    def stop(self) -> None:
        """End training at this boundary."""
        self.progress.is_stopped = True

    def validate(self) -> Validation:
        """Return the training metrics as a validation, where the searcher needs one and the script reported none."""
        return self.record_validation(self.progress.training_metrics())

    def save_checkpoint(self, *, final: bool = False) -> None:
        """Save the state of this boundary in the background, unless it is already saved."""
        self._checkpoints.save()

    def prepare_checkpoints(self) -> None:
        """Check what is tracked, and allocate memory for the copies of all variables."""
        self._checkpoints.prepare()
        if self.core.distributed.is_chief:
            warn_of_random_functions(self._traced_before)

    def wait_for_checkpoint(self) -> None:
        """Wait until every checkpoint is written.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
        """
        self._checkpoints.wait()

    # The calls of the loop.

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the master or a signal asked this process to stop."""
        return self.core.preempt.is_requested or self.signals.received is not None

    @property
    def is_boundary_due(self) -> bool:
        """Whether an injected callback acts after the newest batch."""
        is_asked = self._workers.is_single and self.is_asked_to_stop
        return is_asked or self.progress.position.batches >= self._next_batch

    def begin(self) -> None:
        """Begin the training; on a resume the position is set, and all other state is restored next."""
        for callback in self._injected:
            callback.on_begin(self)

    def restored(self) -> None:
        """Record that a checkpoint was restored."""
        for callback in self._injected:
            callback.on_restored(self)

    def before_tracing(self) -> None:
        """Record what is traced, so that random functions of the first batch are found; later calls do nothing."""
        if not self._traced_before:
            self._traced_before = traced_names()

    def visit(self, boundary: Boundary) -> None:
        """Let the injected callbacks act between two batches."""
        self.progress.logs_of_boundary = boundary.logs
        for callback in self._injected:
            callback.on_boundary(self, boundary)
        self.plan_boundary()

    def plan_boundary(self) -> None:
        """Ask the injected callbacks after which batch they act."""
        requested = [callback.next_batch(self) for callback in self._injected]
        self._next_batch = min((batch for batch in requested if batch is not None), default=_NEVER)

    def record_validation(self, metrics: Mapping[str, Any]) -> Validation:
        """Report the result of a validation at the newest batch."""
        progress = self.progress
        progress.validations += 1
        is_best = is_best_validation(metrics, progress, self.settings, self.core)
        validation = Validation(progress.total_batches, metrics, is_best)
        progress.last_validation = validation
        progress.last_validation_batch = progress.position.batches
        self.validated_at = progress.total_batches
        for callback in self._injected:
            callback.on_validation(self, validation)
        # A checkpoint by policy is due at the next boundary, also inside of an epoch.
        self._next_batch = progress.position.batches
        return validation

    def end(self) -> None:
        """End the training: save its last state, and leave the process if a signal arrived in the meantime."""
        for callback in self._injected:
            callback.on_end(self)
        self.core.train.set_status("finishing")
        self.wait_for_checkpoint()
        self._preemption.leave_at_end(self)

    def _trained_passes(self) -> Sequence[Pass]:
        return [
            data_pass
            for data_pass in self._parts.passes.values()
            if data_pass.is_loaded and data_pass.options.is_training
        ]

    def _inject(self, on_nan: str) -> list[InjectedCallback]:
        """Return the injected callbacks in the order in which they act; `FitRun` says why it is this order."""
        settings = self.settings
        workers = DivergenceCallback(self._workers, settings.divergence_check_period)
        return [
            MetricsCallback(settings.report_period, on_nan),
            CheckpointCallback(settings.checkpoint_policy, self._checkpoint_period),
            SearcherCallback(settings.max_length),
            self._preemption,
            ProgressCallback(),
            *([] if self._workers.is_single else [workers]),
        ]

    def _checkpoint_period(self) -> int | None:
        """Return the batches between two checkpoints; None for no limit, or while the data is not known."""
        period, size, steps = self.settings.checkpoint_period, self.global_batch_size, self.steps_per_epoch
        needed = {Unit.BATCHES: 1, Unit.RECORDS: size, Unit.EPOCHS: steps or self.settings.records_per_epoch}
        return self.settings.in_batches(period, size, steps) if needed[period.unit] else None
