"""The parsed configs of stored experiments, each parsed once."""

from __future__ import annotations

import functools
import json

from sqlalchemy.orm import Session

from det_keras.config import ExperimentConfig
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.wire import encode_json

__all__ = ["config_of", "config_of_trial"]


def config_of(experiment: ExperimentRow) -> ExperimentConfig:
    """Return an experiment's config; it may have been changed since the last call."""
    return _parsed(encode_json(experiment.config))


def config_of_trial(session: Session, trial: TrialRow) -> ExperimentConfig:
    """Return the config of a trial's experiment."""
    experiment = session.get(ExperimentRow, trial.experiment_id)
    assert experiment is not None
    return config_of(experiment)


@functools.lru_cache(maxsize=64)
def _parsed(text: bytes) -> ExperimentConfig:
    return ExperimentConfig.from_dict(json.loads(text))
