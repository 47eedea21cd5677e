"""What is done with many trials at once. Clients of Determined call them runs.

A trial of a search is never paused, archived, moved or deleted without the others: its experiment is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from det_keras.master.database.lookups import config_of, find_experiment, find_trial
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import FailedPreconditionError, NotFoundError
from det_keras.master.experiments import bulk
from det_keras.master.experiments.reporting import controller_of
from det_keras.master.experiments.steering import going_on
from det_keras.master.teams import placing
from det_keras.protocol import states

RunAction = Callable[[Transaction, TrialRow, ExperimentRow], None]


def is_of_search(session: Session, experiment: ExperimentRow) -> bool:
    """Return whether an experiment has, or may get, more than one trial."""
    if config_of(experiment).searcher.name != "single":
        return True
    count = session.scalar(select(func.count()).where(TrialRow.experiment_id == experiment.id))
    return (count or 0) > 1


def _kill(tx: Transaction, trial: TrialRow, experiment: ExperimentRow) -> None:
    if experiment.state not in states.TERMINAL:
        controller_of(tx, experiment).stop_trial(trial, states.STOPPING_KILLED)


def _stop(tx: Transaction, trial: TrialRow, experiment: ExperimentRow) -> None:
    going_on(tx, experiment).stop_trial(trial, states.STOPPING_COMPLETED)


def _whole(verb: str, words: str) -> RunAction:
    """Return what is done with the experiment of a trial that has no others."""

    def act(tx: Transaction, trial: TrialRow, experiment: ExperimentRow) -> None:
        if is_of_search(tx, experiment):
            raise FailedPreconditionError(f"Cannot {words} run '{trial.id}' (part of multi-trial).")
        bulk.ACTIONS[verb](tx, experiment)

    return act


#: What may be done with many trials at once, by the last word of the call's path.
ACTIONS: Mapping[str, RunAction] = {
    "kill": _kill,
    # Not in Determined's API: it ends at a checkpoint, and counts as completed.
    "stop": _stop,
    "pause": _whole("pause", "pause/unpause"),
    "resume": _whole("activate", "pause/unpause"),
    "archive": _whole("archive", "archive/unarchive"),
    "unarchive": _whole("unarchive", "archive/unarchive"),
    "delete": _whole("delete", "delete"),
}


def moved_to(project_id: int, *, skips_searches: bool) -> RunAction:
    """Return the action that moves the experiments of trials to a project.

    Args:
        project_id: number of the project.
        skips_searches: whether the trials of searches stay where they are. Otherwise all trials of theirs move.
    """

    def act(tx: Transaction, trial: TrialRow, experiment: ExperimentRow) -> None:
        if skips_searches and is_of_search(tx, experiment):
            raise FailedPreconditionError(f"Skipping run '{trial.id}' (part of multi-trial).")
        if experiment.project_id != project_id:
            placing.move(tx, experiment, project_id)

    return act


def apply_to_each(
    store: Store, trial_ids: Sequence[int], project_id: int, action: RunAction
) -> list[tuple[int, str]]:
    """Do something with each of some trials, in a transaction of its own.

    Args:
        store: the database.
        trial_ids: numbers of trials; one that is named twice counts once.
        project_id: number of the project in which they have to be; 0 for any.
        action: what is done.

    Returns:
        The number of each, and why nothing was done with it; empty if it was done.
    """

    def act(tx: Transaction, number: int) -> None:
        trial = find_trial(tx, number)
        experiment = find_experiment(tx, trial.experiment_id)
        if project_id and experiment.project_id != project_id:
            raise NotFoundError(f"Run with id '{number}' not found in project with id '{project_id}'")
        action(tx, trial, experiment)

    return bulk.one_by_one(store, trial_ids, act)
