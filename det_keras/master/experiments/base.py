"""The contract of what moves an experiment, so that calls need not know who runs its trials."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from det_keras.master.database.models import TrialRow
from det_keras.master.errors import InvalidArgumentError
from det_keras.search import ExitedReason, Operation

__all__ = ["Controller", "early_exit_reason"]

_EARLY_EXITS = {
    "EXITED_REASON_INVALID_HP": ExitedReason.INVALID_HP,
    "EXITED_REASON_INIT_INVALID_HP": ExitedReason.INIT_INVALID_HP,
}


def early_exit_reason(reason: str) -> ExitedReason:
    """Return the reason for which a trial ends before its time.

    Args:
        reason: as it travels.

    Raises:
        InvalidArgumentError: it is no such reason.
    """
    if reason not in _EARLY_EXITS:
        raise InvalidArgumentError(f"reason {reason!r} must be one of {', '.join(_EARLY_EXITS)}.")
    return _EARLY_EXITS[reason]


class Controller(abc.ABC):
    """Moves one experiment within one transaction.

    An experiment that is over stays as it is: `stop` and `stop_trial` do nothing then, and a report about a trial that
    is over changes neither its state nor that of the experiment.
    """

    @abc.abstractmethod
    def activate(self) -> None:
        """Let the experiment run.

        Raises:
            FailedPreconditionError: it is over or about to be, or nothing of it can be started here.
        """

    @abc.abstractmethod
    def pause(self) -> None:
        """Ask all trials to stop where they are and to resume later.

        Raises:
            FailedPreconditionError: the experiment is over or about to be, or its trials do not run here.
        """

    @abc.abstractmethod
    def stop(self, stopping: str) -> None:
        """End the experiment.

        Args:
            stopping: the state on the way to the end, such as ``STOPPING_CANCELED``.
        """

    @abc.abstractmethod
    def stop_trial(self, trial: TrialRow, stopping: str) -> None:
        """End one trial; arguments as in `stop`."""

    @abc.abstractmethod
    def early_exit(self, trial: TrialRow, reason: str) -> None:
        """Record that a trial refuses its hyperparameters.

        Raises:
            InvalidArgumentError: `reason` is no such reason.
        """

    @abc.abstractmethod
    def validated(self, trial: TrialRow, metrics: Mapping[str, Any]) -> None:
        """Pass a validation to the search."""

    @abc.abstractmethod
    def operation(self, trial: TrialRow) -> Operation | None:
        """Return the length that a trial has to reach; None where the search gives none."""

    @abc.abstractmethod
    def operation_completed(
        self, trial: TrialRow, length: int, metric: float, metrics: Mapping[str, Any]
    ) -> None:
        """Record that a trial reached the length that it was given; a second report of it changes nothing.

        Args:
            trial: it.
            length: in the unit of the config's ``max_length``.
            metric: the searcher's metric there.
            metrics: all metrics of that validation.

        Raises:
            InvalidArgumentError: it was given another length, or none.
        """

    @abc.abstractmethod
    def progressed(self, trial: TrialRow, progress: float, *, is_fraction: bool) -> None:
        """Record how far a trial is.

        Args:
            trial: it.
            progress: 0 to 1 with `is_fraction`, else in the unit of the config's ``max_length``.
            is_fraction: what `progress` is.
        """
