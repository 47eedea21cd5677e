"""Experiments that report from outside: their scripts run wherever their users start them.

The master starts nothing here and can end nothing. That a trial runs it learns from its script, which lets itself be
heard once a minute; how a trial ended the script says itself, and one that is not heard of for a while is lost. The
state of the experiment follows from those of its trials.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from det_keras.master import lifecycle
from det_keras.master.database.events import task_topic
from det_keras.master.database.models import ExperimentRow, TaskRow, TrialRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError
from det_keras.master.experiments.base import Controller, early_exit_reason
from det_keras.master.tasks.logs import note
from det_keras.protocol import states
from det_keras.protocol.values import now
from det_keras.search import Operation

__all__ = ["LOST_AFTER", "UnmanagedController", "find_lost", "hear_all_again"]

#: How long a trial may be silent: five heartbeats of the original's client.
LOST_AFTER = timedelta(minutes=5)

_RUNNING = frozenset({states.ACTIVE, "QUEUED", "PULLING", "STARTING", "RUNNING"})


class UnmanagedController(Controller):
    """Follows one experiment that reports from outside; to the calls what `ExperimentController` is for the others.

    Args:
        tx: everything is written in it.
        experiment: a row of it.
    """

    def __init__(self, tx: Transaction, experiment: ExperimentRow) -> None:
        self._tx = tx
        self._experiment = experiment

    def activate(self) -> None:
        """Refuse: nothing here can be started."""
        raise self._refusal()

    def pause(self) -> None:
        """Refuse: nothing here can be stopped and started again."""
        raise self._refusal()

    def stop(self, stopping: str) -> None:
        """Take the experiment for ended; its scripts go on, if there are any."""
        if self._experiment.state in states.TERMINAL:
            return
        ended_as = lifecycle.terminal_of(stopping)
        for trial in self._trials():
            self._stop_trial(trial, ended_as)
            # One that was lost is not brought back by a late word of its script either.
            trial.heartbeat_at = None
        # Not what follows from the trials: some may have been completed before, but not all of them.
        self._enter(ended_as)

    def stop_trial(self, trial: TrialRow, stopping: str) -> None:
        """Take a trial for ended; its script goes on, if there is one."""
        if self._stop_trial(trial, lifecycle.terminal_of(stopping)):
            self._follow()

    def early_exit(self, trial: TrialRow, reason: str) -> None:
        """Record that a trial refuses its hyperparameters; its script reports how it ends."""
        early_exit_reason(reason)
        note(self._tx, trial.task_id, f"Trial {trial.id} refuses its hyperparameters ({reason}).", "WARNING")

    def validated(self, trial: TrialRow, metrics: Mapping[str, Any]) -> None:
        """Do nothing: there is no search to tell."""

    def operation(self, trial: TrialRow) -> Operation | None:
        """Return None: nobody says how long a trial is to be."""
        return None

    def operation_completed(
        self, trial: TrialRow, length: int, metric: float, metrics: Mapping[str, Any]
    ) -> None:
        """Refuse: no length was given."""
        raise InvalidArgumentError(f"The search gives trial {trial.id} no length.")

    def progressed(self, trial: TrialRow, progress: float, *, is_fraction: bool) -> None:
        """Note how far a trial is; the experiment is as far as its trials are on average."""
        trial.progress = min(1.0, max(0.0, progress))
        trials = self._trials()
        self._experiment.progress = sum(one.progress for one in trials) / len(trials)

    def create_trial(self, hparams: Mapping[str, Any], external_id: str | None = None) -> TrialRow:
        """Make a trial, or find the one of that `external_id`.

        Raises:
            FailedPreconditionError: the experiment is about to be deleted.
        """
        known = None if external_id is None else self._trial_of(external_id)
        if known is not None:
            return known
        experiment = self._experiment
        if experiment.state in (states.DELETING, states.DELETE_FAILED):
            raise FailedPreconditionError(f"experiment in incompatible state {experiment.state}")
        task = TaskRow(
            id=f"{experiment.id}.{uuid.uuid4()}",
            kind="TRIAL",
            owner_id=experiment.owner_id,
            job_id=experiment.job_id,
            slots=0,
            start_time=now(),
        )
        self._tx.add(task)
        self._tx.flush()
        trial = TrialRow(
            experiment_id=experiment.id,
            task_id=task.id,
            external_id=external_id,
            heartbeat_at=now(),
            request_id=str(uuid.uuid4()),
            state=states.ACTIVE,
            hparams=dict(hparams),
            seed=0,
            summary_metrics={},
            start_time=now(),
        )
        self._tx.add(trial)
        self._tx.flush()
        self._follow()
        return trial

    def start_run(self, trial: TrialRow) -> None:
        """Begin the next run of a trial, be it ended or not: what is reported from now on is of this run."""
        trial.run_id += 1
        self._revive(trial)

    def heard(self, trial: TrialRow, state: str | None) -> None:
        """Note that the script of a trial is there, or how it says that it ended.

        Args:
            trial: of the experiment.
            state: what the script says of itself; None for a heartbeat.

        Raises:
            InvalidArgumentError: only the master could bring it into that state.
        """
        if state is not None and state not in _RUNNING | states.TERMINAL:
            names = ", ".join(sorted(_RUNNING | states.TERMINAL))
            raise InvalidArgumentError(f"The state of an unmanaged trial is one of {names}, not {state}.")
        # One that was lost may be heard of again: the network was away, not the script. But who ended by its own
        # word, or by a user's, is not brought back by a heartbeat that was on its way.
        is_open = trial.state not in states.TERMINAL or trial.heartbeat_at is not None
        if state in states.TERMINAL:
            if is_open:
                self._finish(trial, str(state))
        elif is_open or state is not None:
            self._revive(trial)

    def lose(self, trial: TrialRow) -> None:
        """Give up a trial that was not heard of."""
        minutes = int(LOST_AFTER.total_seconds() // 60)
        text = f"Nothing was heard of trial {trial.id} for {minutes} minutes: it is taken for lost."
        note(self._tx, trial.task_id, text, "ERROR")
        heard_at = trial.heartbeat_at
        self._finish(trial, states.ERROR)
        trial.heartbeat_at = heard_at

    def _stop_trial(self, trial: TrialRow, state: str) -> bool:
        """Take a trial for ended; return whether it was not yet."""
        if trial.state in states.TERMINAL:
            return False
        note(self._tx, trial.task_id, f"Trial {trial.id} was ended by a user; its script is not told.")
        self._end(trial, state)
        return True

    def _revive(self, trial: TrialRow) -> None:
        trial.heartbeat_at = now()
        if trial.state != states.ACTIVE:
            trial.state = states.ACTIVE
            self._set_end(trial, None)
            self._follow()

    def _finish(self, trial: TrialRow, state: str) -> None:
        self._end(trial, state)
        self._follow()

    def _end(self, trial: TrialRow, state: str) -> None:
        trial.state = state
        trial.runner_state = ""
        trial.heartbeat_at = None
        self._set_end(trial, now())

    def _set_end(self, trial: TrialRow, time: datetime | None) -> None:
        task = self._tx.get(TaskRow, trial.task_id)
        assert task is not None
        trial.end_time = task.end_time = time
        self._tx.notify(task_topic(task.id))

    def _follow(self) -> None:
        """Give the experiment the state that follows from its trials."""
        of_trials = {trial.state for trial in self._trials()}
        if not of_trials <= states.TERMINAL:
            self._enter(states.ACTIVE)
        elif len(of_trials) == 1:
            self._enter(of_trials.pop())
        else:
            self._enter(states.COMPLETED)

    def _enter(self, state: str) -> None:
        experiment = self._experiment
        if experiment.state in (state, states.DELETING, states.DELETE_FAILED):
            return
        experiment.state = state
        experiment.end_time = now() if state in states.TERMINAL else None
        if state == states.COMPLETED:
            experiment.progress = 1.0

    def _trials(self) -> Sequence[TrialRow]:
        query = select(TrialRow).where(TrialRow.experiment_id == self._experiment.id).order_by(TrialRow.id)
        return self._tx.scalars(query).all()

    def _trial_of(self, external_id: str) -> TrialRow | None:
        query = select(TrialRow).where(
            TrialRow.experiment_id == self._experiment.id, TrialRow.external_id == external_id
        )
        return self._tx.scalars(query).one_or_none()

    def _refusal(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"Experiment {self._experiment.id} reports from outside (unmanaged): only whoever started its script "
            "can stop it or let it go on."
        )


def find_lost(session: Session, time: datetime) -> Sequence[int]:
    """Return the trials that were not heard of for too long at `time`."""
    query = select(TrialRow.id).where(
        TrialRow.state == states.ACTIVE, TrialRow.heartbeat_at < time - LOST_AFTER
    )
    return session.scalars(query).all()


def hear_all_again(tx: Transaction) -> None:
    """Give all trials the whole time again: a master that was away heard of nobody."""
    is_heard = (TrialRow.state == states.ACTIVE) & TrialRow.heartbeat_at.is_not(None)
    tx.execute(update(TrialRow).where(is_heard).values(heartbeat_at=now()))
