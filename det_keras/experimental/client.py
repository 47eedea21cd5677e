"""Experiments, trials and checkpoints from a notebook or a script: ``det.experimental.client.get_experiment(7)``.

It works with any master that implements the protocol. Names are those of Determined's own SDK where it has them. An
object has the state of the time when it was fetched, and `reload` fetches it again.
"""

from __future__ import annotations

import os

from det_keras.client import Session
from det_keras.connection.masters import open_session
from det_keras.connection.settings import Settings
from det_keras.experimental.checkpoint import Checkpoint
from det_keras.experimental.experiment import Experiment
from det_keras.experimental.trial import Trial, TrialMetrics

__all__ = [
    "Checkpoint",
    "Experiment",
    "Trial",
    "TrialMetrics",
    "get_checkpoint",
    "get_experiment",
    "get_trial",
]


def get_experiment(experiment_id: int, *, session: Session | None = None) -> Experiment:
    """Return an experiment as it is now; `reload` fetches it again.

    Args:
        experiment_id: its number.
        session: a session with its master; by default with that of ``DET_MASTER``, else with the embedded master.

    Returns:
        The experiment, with its config and its trials.

    Raises:
        DetError: no master is named and none runs.
        MasterError: there is no such experiment, or the caller may not see it.

    Example:
        ```pycon
        >>> experiment = get_experiment(1)
        >>> experiment.name, experiment.metric
        ('digits', 'val_loss')
        >>> trial = experiment.best_trial()
        >>> trial.hparams, trial.searcher_metric
        ({'learning_rate': 0.01}, 0.25)
        >>> trial.metrics("val_loss")
        {'batches': [10, 20], 'values': [0.5, 0.25]}
        ```
    """
    return Experiment(experiment_id, session or _connected())


def get_trial(trial_id: int, *, session: Session | None = None) -> Trial:
    """Return a trial as it is now.

    Args:
        trial_id: its number.
        session: as for `get_experiment`.

    Returns:
        The trial, with its hyperparameters and the summaries of its metrics.

    Raises:
        DetError: no master is named and none runs.
        MasterError: there is no such trial, or the caller may not see it.

    Example:
        ```pycon
        >>> trial = get_trial(1)
        >>> trial.state, trial.batches
        ('RUNNING', 20)
        ```
    """
    session = session or _connected()
    return Trial(session.api.trials.get(int(trial_id)), session)


def get_checkpoint(uuid: str, *, session: Session | None = None) -> Checkpoint:
    """Return a checkpoint as it is now.

    Args:
        uuid: its UUID.
        session: as for `get_experiment`.

    Returns:
        The checkpoint, with its files, its metadata and the metrics of its validation.

    Raises:
        DetError: no master is named and none runs.
        MasterError: there is no such checkpoint, or the caller may not see it.
    """
    session = session or _connected()
    return Checkpoint(session.api.checkpoints.get(uuid), session)


def _connected() -> Session:
    # The first object that a notebook asks for: no caller could have read the environment before.
    return open_session(Settings.from_environment(os.environ))
