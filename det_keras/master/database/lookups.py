"""Looks up experiments and trials by number, and their configs, each parsed once; and what was changed meanwhile."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

from sqlalchemy.orm import Session

from det_keras.config import ExperimentConfig
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.errors import AbortedError, NotFoundError
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


def refuse_overtaken(row: object, what: str, read: Mapping[str, str | None] | None) -> None:
    """Refuse a change by a client that has read an older text.

    Args:
        row: what is changed.
        what: its name in the message.
        read: texts by the names of columns, as the client has read them; None for none.

    Raises:
        AbortedError: somebody else has changed a text since.
    """
    for name, text in (read or {}).items():
        # Browsers do not keep the kind of a line's end.
        if text is not None and getattr(row, name).splitlines() != text.splitlines():
            raise AbortedError(
                f"The {name} of {what} changed after you had opened this editor, and nothing was saved. Copy your "
                "text, cancel, and edit the current one."
            )


@functools.lru_cache(maxsize=64)
def _parsed(text: bytes) -> ExperimentConfig:
    return ExperimentConfig.from_dict(json.loads(text))
