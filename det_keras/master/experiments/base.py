"""The contract of an experiment's controller. It is the same wherever the trials run."""

from __future__ import annotations

import abc
from collections.abc import Mapping

from det_keras.master.database.models import TrialRow
from det_keras.master.errors import InvalidArgumentError
from det_keras.search import ExitedReason, Operation

_EARLY_EXITS = {
    "EXITED_REASON_INVALID_HP": ExitedReason.INVALID_HP,
    "EXITED_REASON_INIT_INVALID_HP": ExitedReason.INIT_INVALID_HP,
}


def early_exit_reason(reason: str) -> ExitedReason:
    """Return the reason for which a trial ends early.

    Args:
        reason: its name in the REST API.

    Raises:
        InvalidArgumentError: the name is unknown.
    """
    if reason not in _EARLY_EXITS:
        raise InvalidArgumentError(f"reason {reason!r} must be one of {', '.join(_EARLY_EXITS)}.")
    return _EARLY_EXITS[reason]


class Controller(abc.ABC):
    """Applies events to one experiment within one transaction.

    An experiment that has ended does not change any more: `stop` and `stop_trial` have no effect, and a report about an
    ended trial changes neither its state nor that of the experiment.
    """

    @abc.abstractmethod
    def activate(self) -> None:
        """Let the experiment run.

        Raises:
            FailedPreconditionError: the experiment has ended or is stopping, or its trials do not run here.
        """

    @abc.abstractmethod
    def pause(self) -> None:
        """Request all trials to take a checkpoint and stop, to be resumed later.

        Raises:
            FailedPreconditionError: the experiment has ended or is stopping, or its trials do not run here.
        """

    @abc.abstractmethod
    def stop(self, stopping: str) -> None:
        """End the experiment.

        Args:
            stopping: the state until all trials have ended, such as ``STOPPING_CANCELED``.
        """

    @abc.abstractmethod
    def stop_trial(self, trial: TrialRow, stopping: str) -> None:
        """End one trial; `stopping` as in `stop`."""

    @abc.abstractmethod
    def early_exit(self, trial: TrialRow, reason: str) -> None:
        """Record that a trial's script refused its hyperparameters.

        Raises:
            InvalidArgumentError: `reason` is unknown.
        """

    @abc.abstractmethod
    def validated(self, trial: TrialRow, metrics: Mapping[str, object]) -> None:
        """Pass a validation to the search."""

    @abc.abstractmethod
    def operation(self, trial: TrialRow) -> Operation | None:
        """Return the length that a trial has to reach; None if the search gives no lengths."""

    @abc.abstractmethod
    def operation_completed(
        self, trial: TrialRow, length: int, metric: float, metrics: Mapping[str, object]
    ) -> None:
        """Record that a trial reached its length; a second report of the same length changes nothing.

        Args:
            trial: a trial of the experiment.
            length: in the unit of the config's ``max_length``.
            metric: the searcher's metric at that length.
            metrics: all metrics of the same validation.

        Raises:
            InvalidArgumentError: the trial was given another length, or none.
        """

    @abc.abstractmethod
    def progressed(self, trial: TrialRow, progress: float, *, is_fraction: bool) -> None:
        """Record the progress of a trial.

        Args:
            trial: a trial of the experiment.
            progress: 0 to 1 with `is_fraction`, otherwise in the unit of the config's ``max_length``.
            is_fraction: whether `progress` is a fraction.
        """
