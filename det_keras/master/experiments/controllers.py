"""Who moves an experiment: the conductor of those that the master runs, or of those that report from outside."""

from __future__ import annotations

from det_keras.master.database.models import ExperimentRow
from det_keras.master.database.store import Transaction
from det_keras.master.experiments.controller import Conductor
from det_keras.master.experiments.unmanaged import UnmanagedConductor

__all__ = ["conductor_of"]


def conductor_of(tx: Transaction, experiment: ExperimentRow) -> Conductor | UnmanagedConductor:
    """Return who moves `experiment` in the transaction."""
    return (UnmanagedConductor if experiment.is_unmanaged else Conductor)(tx, experiment)
