"""Applies reports of metrics to their experiment: stores them, and passes validations to the search."""

from __future__ import annotations

from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.database.models import ExperimentRow
from det_keras.master.database.store import Transaction
from det_keras.master.experiments.base import Controller
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.experiments.unmanaged import UnmanagedController
from det_keras.master.reports.metrics import Report, store_report
from det_keras.protocol import states


def report_metrics(tx: Transaction, report: Report) -> None:
    """Store a report; pass a validation to the search.

    Raises:
        NotFoundError: the trial does not exist.
        InvalidArgumentError: the report is malformed, of another run, or contradicts an earlier one.
    """
    validation = store_report(tx, report)
    if validation is None:
        return
    trial = find_trial(tx, report.trial_id)
    experiment = find_experiment(tx, trial.experiment_id)
    if experiment.state not in states.TERMINAL:
        controller_of(tx, experiment).validated(trial, validation.metrics)


def controller_of(tx: Transaction, experiment: ExperimentRow) -> Controller:
    """Return the controller of `experiment`; it writes its changes in `tx`."""
    return (UnmanagedController if experiment.is_unmanaged else ExperimentController)(tx, experiment)
