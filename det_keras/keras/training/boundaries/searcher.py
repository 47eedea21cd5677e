"""Trains to the length of the searcher's operation, and reports the result of the operation."""

from __future__ import annotations

import logging
from dataclasses import replace

from det_keras.config import Length, Unit
from det_keras.core.backend import Operation
from det_keras.errors import DetError
from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run
from det_keras.keras.training.position import Target

logger = logging.getLogger(__name__)


class SearcherCallback(BoundaryCallback):
    """Sets a trial's length from the searcher's operations, otherwise from the config, otherwise from `epochs`.

    Args:
        max_length: the length in the config, which also defines the unit of the operations; None if it has none.
    """

    def __init__(self, max_length: Length | None) -> None:
        self._max_length = max_length
        self._operation: Operation | None = None
        self._has_length = False
        self._has_logged = False

    def on_begin(self, run: Run) -> None:
        if run.core.info is None:
            return
        self._operation = run.core.backend.current_operation()
        is_over = self._operation is not None and self._operation.completed
        if is_over and run.phase_index > 0 and run.progress.position.batches == 0:
            raise DetError(
                f"The length that the config or its search gives this trial was trained before training number "
                f"{run.phase_index + 1} of the script began, and nothing is left for it. Such a length holds for a "
                "script with one training. Leave out `searcher.max_length`: each `fit` then trains its own `epochs`."
            )
        self._set_target(run)

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        if not self._has_length or not run.progress.is_at_target:
            return
        # Save the checkpoint first: if the trial is continued, there is a state to resume from.
        run.save_checkpoint()
        if self._operation is None:
            return
        run.wait_for_checkpoint()
        validation = run.progress.current_validation or run.validate()
        if run.settings.metric not in validation.metrics:
            raise DetError(
                f"The searcher's metric {run.settings.metric!r} is not among the validation metrics: "
                f"{', '.join(validation.metrics)}. Set `searcher.metric` to one of them."
            )
        run.core.backend.complete_operation(self._operation, validation.metrics[run.settings.metric])
        self._operation = run.core.backend.current_operation()
        self._set_target(run)

    def _set_target(self, run: Run) -> None:
        self._has_length = self._operation is not None or self._max_length is not None
        if self._operation is None:
            if self._max_length is not None:
                run.aim_at(self._target(run, self._max_length))
            return
        if self._operation.completed:
            # The trial has no operation left, but it is not finished: the search may give it another one later, and
            # the trial then resumes from its checkpoint.
            run.core.preempt.acknowledge_preemption_signal()
            run.stop()
            return
        unit = self._max_length.unit if self._max_length is not None else Unit.EPOCHS
        target = self._target(run, Length(unit, self._operation.length))
        # A search by halving may give a longer length later.
        is_final = self._max_length is not None and self._operation.length >= self._max_length.value
        run.aim_at(replace(target, is_final=is_final))

    def _target(self, run: Run, length: Length) -> Target:
        """Return a length in epochs as epochs of the data, unless `records_per_epoch` is set; others in batches."""
        settings = run.settings
        if length.unit is Unit.EPOCHS and settings.records_per_epoch == 0:
            return Target(epochs=length.value)
        batches = length.to_batches(run.global_batch_size, settings.records_per_epoch)
        self._tell_if_epochs_differ(run)
        return Target(batches=max(batches - run.progress.batches_before, 0))

    def _tell_if_epochs_differ(self, run: Run) -> None:
        """Log once if an epoch by `records_per_epoch` differs from a pass over the data."""
        records, size, steps = (
            run.settings.records_per_epoch,
            run.global_batch_size,
            run.steps_per_epoch,
        )
        if self._has_logged or not records or not size or steps is None or abs(records // size - steps) < 1:
            return
        self._has_logged = True
        logger.info(
            "`records_per_epoch: %s` makes an epoch %s batches, a pass over the data has %s; the config counts for "
            "the searcher and for periods.",
            records,
            records // size,
            steps,
        )
