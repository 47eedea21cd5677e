"""Chooses the controller of an experiment: the master runs its trials, or they report from outside."""

from __future__ import annotations

from det_keras.master.database.models import ExperimentRow
from det_keras.master.database.store import Transaction
from det_keras.master.experiments.base import Controller
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.experiments.unmanaged import UnmanagedController

__all__ = ["controller_of"]


def controller_of(tx: Transaction, experiment: ExperimentRow) -> Controller:
    """Return the controller of `experiment`, whose changes belong to the transaction."""
    return (UnmanagedController if experiment.is_unmanaged else ExperimentController)(tx, experiment)
