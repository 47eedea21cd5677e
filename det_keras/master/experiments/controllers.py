"""Who moves an experiment: the controller of those that the master runs, or of those that report from outside."""

from __future__ import annotations

from det_keras.master.database.models import ExperimentRow
from det_keras.master.database.store import Transaction
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.experiments.unmanaged import UnmanagedController

__all__ = ["controller_of"]


def controller_of(tx: Transaction, experiment: ExperimentRow) -> ExperimentController | UnmanagedController:
    """Return who moves `experiment` in the transaction."""
    return (UnmanagedController if experiment.is_unmanaged else ExperimentController)(tx, experiment)
