"""What a report of metrics means for its experiment: it is stored, and a validation moves the search."""

from __future__ import annotations

from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.database.store import Transaction
from det_keras.master.experiments.controllers import controller_of
from det_keras.master.reports.metrics import Report, store_report
from det_keras.protocol import states

__all__ = ["report_metrics"]


def report_metrics(tx: Transaction, report: Report) -> None:
    """Store a report and tell the search of a validation.

    Raises:
        NotFoundError: there is no such trial.
        InvalidArgumentError: the report is malformed, of another run, or contradicts an earlier one.
    """
    validation = store_report(tx, report)
    if validation is None:
        return
    trial = find_trial(tx, report.trial_id)
    experiment = find_experiment(tx, trial.experiment_id)
    if experiment.state not in states.TERMINAL:
        controller_of(tx, experiment).validated(trial, validation.metrics)
