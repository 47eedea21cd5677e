"""Chooses the controller of an experiment: managed by this master, or unmanaged."""

from __future__ import annotations

from det_keras.master.database.models import ExperimentRow
from det_keras.master.database.store import Transaction
from det_keras.master.experiments.base import Controller
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.experiments.unmanaged import UnmanagedController


def controller_of(tx: Transaction, experiment: ExperimentRow) -> Controller:
    """Return the controller of `experiment`; it writes its changes in `tx`."""
    return (UnmanagedController if experiment.is_unmanaged else ExperimentController)(tx, experiment)
