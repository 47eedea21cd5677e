"""The progress of a `fit`: plain values, which every part may read and a checkpoint stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from det_keras.keras.training.metric_values import plain_logs, plain_value
from det_keras.keras.training.position import Position, Target


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    Attributes:
        batches: batches trained in the script when it ran.
        metrics: by name, each ``val_...``.
        is_best: whether the searcher's metric is better than all before it in the experiment.
    """

    batches: int
    metrics: Mapping[str, float]
    is_best: bool


@dataclass
class Progress:
    """The values that change while a `fit` trains.

    Attributes:
        batches_before: batches that the script trained in earlier phases.
        position: the newest batch boundary.
        target: where training ends.
        ended_batch: the batch of this `fit` whose callbacks were called last, counted from 1. It is ahead of `position`
            while they are called.
        is_in_epoch: Keras takes the batches of an epoch; False while an epoch is prepared or ended.
        is_stopped: training ends at this boundary, before its target.
        is_resumed: this process continues a phase that an earlier one began.
        awaits_state: a checkpoint was found and is not restored yet.
        validations: number of validations, including those of earlier processes.
        last_validation: the newest validation of this process; None before the first.
        last_validation_batch: the batch of this `fit` at the newest validation of any process.
        last_checkpoint_batch: the batch of this `fit` at the newest checkpoint.
        best_metric: the best value of the searcher's metric in this process. The backend has the best value of the
            experiment, including earlier processes; this one is used while the master is unavailable.
        logs_of_boundary: Keras's running training metrics at the newest boundary.
        logs_of_epoch: the logs of the newest finished epoch; None before the first.
    """

    batches_before: int
    position: Position
    target: Target
    ended_batch: int = 0
    is_in_epoch: bool = False
    is_stopped: bool = False
    is_resumed: bool = False
    awaits_state: bool = False
    validations: int = 0
    last_validation: Validation | None = None
    last_validation_batch: int = 0
    last_checkpoint_batch: int = 0
    best_metric: float | None = None
    logs_of_boundary: Mapping[str, Any] = field(default_factory=dict)
    logs_of_epoch: Mapping[str, Any] | None = None

    @property
    def total_batches(self) -> int:
        """Batches trained in the script so far, over all phases."""
        return self.batches_before + self.position.batches

    @property
    def trained_batches(self) -> int:
        """Batches trained in the script so far, as the user's callbacks see it."""
        return self.batches_before + max(self.position.batches, self.ended_batch)

    @property
    def trained_steps(self) -> int | None:
        """Steps of the current epoch that are trained; None outside of epochs."""
        return self.position.step if self.is_in_epoch else None

    @property
    def is_at_target(self) -> bool:
        """Whether the target is reached."""
        return self.target.is_reached(self.position)

    @property
    def current_validation(self) -> Validation | None:
        """The validation at the newest boundary; None if there was none."""
        validation = self.last_validation
        return validation if validation is not None and validation.batches == self.total_batches else None

    def resume_at(self, state: Mapping[str, Any]) -> None:
        """Set the position of a checkpoint; `load_state` restores the rest later."""
        self.position = Position(**state["position"])
        self.last_validation_batch = state["last_validation_batch"]
        self.is_resumed = True

    def add_validation(self, metrics: Mapping[str, Any], *, is_best: bool) -> Validation:
        """Add a validation at the newest boundary, and return it."""
        self.validations += 1
        self.last_validation = Validation(self.total_batches, metrics, is_best)
        self.last_validation_batch = self.position.batches
        return self.last_validation

    def end_epoch(self, logs: Mapping[str, Any]) -> None:
        """Move to the boundary between this epoch, which had these metrics, and the next."""
        self.position = self.position.next_epoch()
        self.logs_of_boundary = logs

    def advance(self) -> None:
        """Move to the boundary after the next batch."""
        self.position = self.position.at_step(self.position.step + 1)

    def epochs_left(self, steps_per_epoch: int | None) -> int:
        """Return the number of remaining epochs, including the current one; an upper bound for a target in batches.

        Args:
            steps_per_epoch: batches per epoch, None if unknown.
        """
        if self.target.epochs is not None:
            return max(self.target.epochs - self.position.epoch, 0)
        left = max((self.target.batches or 0) - self.position.batches, 0)
        return left // (steps_per_epoch or 1) + 2

    def training_metrics(self) -> dict[str, Any]:
        """Return Keras's running training metrics as they were at the newest boundary, as plain numbers."""
        return plain_logs(self.logs_of_boundary)

    def get_state(self, *, with_logs: bool) -> dict[str, Any]:
        """Return the values that a checkpoint stores, as JSON values.

        Args:
            with_logs: include the running training metrics. Reading them waits for the step on the device.
        """
        return {
            "position": asdict(self.position),
            "validations": self.validations,
            "last_validation_batch": self.last_validation_batch,
            "logs": _plain(self.logs_of_boundary) if with_logs else None,
            "epoch_logs": _plain(self.logs_of_epoch),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the values that `get_state` returned, except the position, which is restored earlier."""
        self.validations = state["validations"]
        self.last_validation_batch = state["last_validation_batch"]
        self.last_checkpoint_batch = self.position.batches
        self.logs_of_boundary = state.get("logs") or {}
        self.logs_of_epoch = state.get("epoch_logs")


def _plain(logs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if logs is None:
        return None
    return {
        name: _plain(value) if isinstance(value, Mapping) else plain_value(value)
        for name, value in logs.items()
    }
