"""Looks up experiments and trials by number, and their configs, each parsed once."""

from __future__ import annotations

import functools
import json

from sqlalchemy.orm import Session

from det_keras.config import ExperimentConfig
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.errors import NotFoundError
from det_keras.master.wire import encode_json


def find_experiment(session: Session, experiment_id: int) -> ExperimentRow:
    """Return the experiment with a number.

    Raises:
        NotFoundError: it does not exist.
    """
    row = session.get(ExperimentRow, experiment_id)
    if row is None:
        raise NotFoundError(f"experiment '{experiment_id}' not found")
    return row


def find_trial(session: Session, trial_id: int) -> TrialRow:
    """Return the trial with a number.

    Raises:
        NotFoundError: it does not exist.
    """
    row = session.get(TrialRow, trial_id)
    if row is None:
        raise NotFoundError(f"trial '{trial_id}' not found")
    return row


def config_of(experiment: ExperimentRow) -> ExperimentConfig:
    """Return an experiment's current config; it may differ from the last call's."""
    return _parsed(encode_json(experiment.config))


def config_of_trial(session: Session, trial: TrialRow) -> ExperimentConfig:
    """Return the config of a trial's experiment."""
    experiment = session.get(ExperimentRow, trial.experiment_id)
    assert experiment is not None
    return config_of(experiment)


@functools.lru_cache(maxsize=64)
def _parsed(text: bytes) -> ExperimentConfig:
    return ExperimentConfig.from_dict(json.loads(text))
