"""Continuing ended experiments: which trials run again, and from which checkpoint.

A trial continues as the same trial, from its latest checkpoint, with its restarts counted from 0. It gets a new task,
because clients that follow a log treat an ended task as final. Everything is written in one transaction: a master
that is killed meanwhile leaves the experiment either ended as before or continued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from det_keras import search
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import ExperimentRow, TaskRow, TrialRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import FailedPreconditionError
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.experiments.search_state import SearchState
from det_keras.protocol import states
from det_keras.protocol.values import now
from det_keras.search import Close, Create, Searcher, ValidateAfter


def is_single(experiment: ExperimentRow) -> bool:
    """Return whether an experiment's searcher is ``single``."""
    return bool(experiment.config["searcher"]["name"] == "single")


def check_continuable(experiment: ExperimentRow) -> None:
    """Check that an experiment may be continued.

    Raises:
        FailedPreconditionError: it is unmanaged, archived or has not ended.
    """
    if experiment.is_unmanaged:
        raise FailedPreconditionError(
            f"Experiment {experiment.id} is unmanaged: start its script again to continue it."
        )
    if experiment.state not in states.TERMINAL:
        raise FailedPreconditionError(
            f"experiment in incompatible state {experiment.state}: only an ended experiment can be continued"
        )
    if experiment.archived:
        raise FailedPreconditionError(f"Experiment {experiment.id} is archived: unarchive it first.")


def go_on(tx: Transaction, experiment: ExperimentRow) -> None:
    """Continue an ended experiment.

    Raises:
        FailedPreconditionError: no trial is left to run.
    """
    query = select(TrialRow).where(TrialRow.experiment_id == experiment.id).order_by(TrialRow.id)
    trials = tx.scalars(query).all()
    state = SearchState(tx, experiment)
    if is_single(experiment):
        searcher = search.from_config(config_of(experiment))
        again = _restart_single(searcher, trials)
    else:
        searcher = state.searcher
        again = _reopen(searcher, trials)
    # Read together, as rows of the transaction.
    old = tx.scalars(select(TaskRow).where(TaskRow.job_id == experiment.job_id)).all()
    _renew(tx, again, {task.id: task for task in old})
    state.replace(searcher)
    experiment.state = states.PAUSED
    experiment.end_time = None
    experiment.progress = 0.0
    # A checkpoint that is not pruned yet may be the one from which a trial resumes.
    experiment.is_pruning_due = False
    ExperimentController(tx, experiment).activate()


def _restart_single(searcher: Searcher, trials: Sequence[TrialRow]) -> Sequence[TrialRow]:
    """Start the search again, with the existing trial in place of a new one."""
    (trial,) = trials
    trial.has_work, trial.is_closed = True, False
    actions = searcher.initial()
    for action in actions:
        if isinstance(action, Create):
            # Its seed stays, so that the order of the data stays the same.
            trial.request_id, trial.hparams = action.request_id, dict(action.hparams)
            actions += searcher.trial_created(action.request_id)
        elif isinstance(action, Close):
            trial.is_closed = True
        else:
            assert isinstance(action, ValidateAfter), action
    return trials


def _reopen(searcher: Searcher, trials: Sequence[TrialRow]) -> Sequence[TrialRow]:
    """Continue the search as it was when the experiment ended; return the trials that run again."""
    cut_off = [trial for trial in trials if not searcher.is_over(trial.request_id)]
    # A search that compares trials has already used the failures in its decisions.
    failed = [
        trial
        for trial in trials
        if searcher.is_over(trial.request_id)
        and not searcher.is_withdrawn(trial.request_id)
        and trial.state != states.COMPLETED
        and not searcher.method.compares_trials
    ]
    if not cut_off and not failed:
        what = "completed" if not searcher.method.compares_trials else "ended before their search did"
        raise FailedPreconditionError(f"There is nothing to continue: all trials {what}.")
    searcher.reopen([trial.request_id for trial in failed])
    for trial in failed:
        trial.has_work = True
    for trial in cut_off:
        # The part of the script after the last length is still to be run.
        trial.has_work = searcher.has_work(trial.request_id) or searcher.is_closed(trial.request_id)
        trial.is_closed = searcher.is_closed(trial.request_id)
    return [*cut_off, *failed]


def _renew(tx: Transaction, trials: Sequence[TrialRow], old: Mapping[str, TaskRow]) -> None:
    """Put ended trials back into the queue, with new tasks."""
    tasks = []
    for trial in trials:
        former, task_ids = old[trial.task_id], trial.task_ids
        tasks.append(
            TaskRow(
                id=f"{task_ids[0]}-{len(task_ids)}",
                kind=former.kind,
                owner_id=former.owner_id,
                job_id=former.job_id,
                context=former.context,
                slots=former.slots,
                start_time=now(),
            )
        )
    tx.add_all(tasks)
    tx.flush()
    for trial, task in zip(trials, tasks, strict=True):
        trial.earlier_task_ids = trial.task_ids
        trial.task_id = task.id
        trial.state = states.PAUSED
        trial.end_time = trial.early_exit = trial.log_policy_matched = None
        trial.is_retry_cancelled = False
        trial.excluded_nodes = []
        trial.restarts = trial.lost_runs = 0
        trial.progress = 0.0
