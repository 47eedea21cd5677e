"""Unmanaged experiments: users start their scripts themselves, on any machine.

The master can neither start nor end these scripts. A script sends a heartbeat once a minute and reports how it ended.
A trial without a heartbeat for five minutes is lost. The state of the experiment follows from the states of its
trials.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from det_keras.master import lifecycle
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError
from det_keras.master.experiments.base import Controller, early_exit_reason
from det_keras.master.experiments.trial_rows import TrialRows
from det_keras.master.tasks.logs import note
from det_keras.protocol import states
from det_keras.protocol.values import now
from det_keras.search import Operation

#: A trial is lost after this time without a report: five heartbeats of Determined's client.
LOST_AFTER = timedelta(minutes=5)

_RUNNING = frozenset({states.ACTIVE, "QUEUED", "PULLING", "STARTING", "RUNNING"})


class UnmanagedController(Controller):
    """The controller of an unmanaged experiment.

    Args:
        tx: the transaction of the event; all changes are written in it.
        experiment: the experiment's row in `tx`.
    """

    def __init__(self, tx: Transaction, experiment: ExperimentRow) -> None:
        self._tx = tx
        self._experiment = experiment
        self._trials = TrialRows(tx, experiment)

    def activate(self) -> None:
        """Refuse: the master cannot start the script."""
        raise self._refusal()

    def pause(self) -> None:
        """Refuse: the master cannot stop and restart the script."""
        raise self._refusal()

    def stop(self, stopping: str) -> None:
        """Record the experiment as ended; scripts that are still running are not stopped."""
        if self._experiment.state in states.TERMINAL:
            return
        ended_as = lifecycle.terminal_of(stopping)
        for trial in self._trials.all():
            self._stop_trial(trial, ended_as)
            # A late report of a lost trial's script does not revive it either.
            trial.heartbeat_at = None
        # Not the state that follows from the trials: some of them may have completed before.
        self._enter(ended_as)

    def stop_trial(self, trial: TrialRow, stopping: str) -> None:
        """Record a trial as ended; a script that is still running is not stopped."""
        if self._stop_trial(trial, lifecycle.terminal_of(stopping)):
            self._follow()

    def early_exit(self, trial: TrialRow, reason: str) -> None:
        """Record that a trial's script refused its hyperparameters; the script reports its end itself."""
        early_exit_reason(reason)
        note(self._tx, trial.task_id, f"Trial {trial.id} refuses its hyperparameters ({reason}).", "WARNING")

    def validated(self, trial: TrialRow, metrics: Mapping[str, object]) -> None:
        """Do nothing: there is no search."""

    def operation(self, trial: TrialRow) -> Operation | None:
        """Return None: trials have no given length."""
        return None

    def operation_completed(
        self, trial: TrialRow, length: int, metric: float, metrics: Mapping[str, object]
    ) -> None:
        """Refuse: trials have no given length.

        Args:
            trial: a trial of the experiment.
            length: not used.
            metric: not used.
            metrics: not used.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(f"The search gives trial {trial.id} no length.")

    def progressed(self, trial: TrialRow, progress: float, *, is_fraction: bool) -> None:
        """Record the progress of a trial; the experiment's progress is the mean over its trials.

        Args:
            trial: a trial of the experiment.
            progress: 0 to 1.
            is_fraction: not used: trials have no given length.
        """
        trial.progress = min(1.0, max(0.0, progress))
        trials = self._trials.all()
        self._experiment.progress = sum(trial.progress for trial in trials) / len(trials)

    def create_trial(self, hparams: Mapping[str, Any], external_id: str | None = None) -> TrialRow:
        """Create a trial, or find the existing trial with `external_id`.

        Raises:
            FailedPreconditionError: the experiment is being deleted.
        """
        known = None if external_id is None else self._trials.with_external_id(external_id)
        if known is not None:
            return known
        experiment = self._experiment
        if experiment.state in (states.DELETING, states.DELETE_FAILED):
            raise FailedPreconditionError(f"experiment in incompatible state {experiment.state}")
        trial = self._trials.add(
            context=None,
            slots=0,
            external_id=external_id,
            heartbeat_at=now(),
            request_id=str(uuid.uuid4()),
            state=states.ACTIVE,
            hparams=dict(hparams),
            seed=0,
        )
        self._follow()
        return trial

    def add_imported_trial(self, external_id: str, hparams: Mapping[str, Any], started: datetime) -> TrialRow:
        """Add the trial of a run of another tracker; no heartbeats are expected of it.

        Args:
            external_id: names the run.
            hparams: its hyperparameter values.
            started: when the run started.
        """
        self._experiment.start_time = started
        return self._trials.add(
            context=None,
            slots=0,
            external_id=external_id,
            request_id=str(uuid.uuid4()),
            state=states.ACTIVE,
            hparams=dict(hparams),
            seed=0,
            start_time=started,
        )

    def set_imported_end(self, trial: TrialRow, state: str, time: datetime | None) -> None:
        """Give the trial of a run of another tracker, and the experiment, the state of the run.

        Args:
            trial: the trial of the experiment.
            state: ACTIVE, or a final state.
            time: when the run ended; None if it has not.
        """
        trial.state = state
        trial.heartbeat_at = None
        self._trials.set_end(trial, time)
        self._enter(state)
        self._experiment.end_time = time

    def start_run(self, trial: TrialRow) -> None:
        """Begin the next run of a trial, even if the trial has ended; later reports belong to this run."""
        trial.run_id += 1
        self._revive(trial)

    def heard(self, trial: TrialRow, state: str | None) -> None:
        """Record a heartbeat of a trial's script, or the state that it reports.

        Args:
            trial: a trial of the experiment.
            state: the state that the script reports; None for a heartbeat.

        Raises:
            InvalidArgumentError: a script cannot report this state.
        """
        if state is not None and state not in _RUNNING | states.TERMINAL:
            names = ", ".join(sorted(_RUNNING | states.TERMINAL))
            raise InvalidArgumentError(
                f"The state of an unmanaged trial must be one of {names}, received {state}."
            )
        # A lost trial may report again, after the network failed and not the script. But a heartbeat that was still on
        # its way must not revive a trial that its script or a user has ended: `heartbeat_at` is None for those.
        is_open = trial.state not in states.TERMINAL or trial.heartbeat_at is not None
        if state in states.TERMINAL:
            if is_open:
                self._finish(trial, str(state))
        elif is_open or state is not None:
            self._revive(trial)

    def lose(self, trial: TrialRow) -> None:
        """Record a trial that has not reported for too long as failed."""
        minutes = int(LOST_AFTER.total_seconds() // 60)
        text = f"Trial {trial.id} has not reported for {minutes} minutes and counts as lost."
        note(self._tx, trial.task_id, text, "ERROR")
        heard_at = trial.heartbeat_at
        self._finish(trial, states.ERROR)
        trial.heartbeat_at = heard_at

    def _stop_trial(self, trial: TrialRow, state: str) -> bool:
        """Record a trial as ended; return whether it had not ended before."""
        if trial.state in states.TERMINAL:
            return False
        note(self._tx, trial.task_id, f"A user ended trial {trial.id}; its script is not notified.")
        self._end(trial, state)
        return True

    def _revive(self, trial: TrialRow) -> None:
        trial.heartbeat_at = now()
        if trial.state != states.ACTIVE:
            trial.state = states.ACTIVE
            self._trials.set_end(trial, None)
            self._follow()

    def _finish(self, trial: TrialRow, state: str) -> None:
        self._end(trial, state)
        self._follow()

    def _end(self, trial: TrialRow, state: str) -> None:
        trial.state = state
        trial.runner_state = ""
        trial.heartbeat_at = None
        self._trials.set_end(trial, now())

    def _follow(self) -> None:
        """Set the experiment's state, which follows from its trials."""
        of_trials = {trial.state for trial in self._trials.all()}
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

    def _refusal(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"Experiment {self._experiment.id} is unmanaged: its script runs outside of this master, which cannot stop "
            "or resume it."
        )


def loss_times(session: Session) -> dict[int, datetime]:
    """Return when each running trial counts as lost if it does not report before, by its number."""
    query = select(TrialRow.id, TrialRow.heartbeat_at).where(
        TrialRow.state == states.ACTIVE, TrialRow.heartbeat_at.is_not(None)
    )
    return {
        trial_id: heard_at + LOST_AFTER
        for trial_id, heard_at in session.execute(query)
        if heard_at is not None
    }


def hear_all_again(tx: Transaction) -> None:
    """Restart the time limit of all trials: a stopped master received no heartbeats."""
    is_heard = (TrialRow.state == states.ACTIVE) & TrialRow.heartbeat_at.is_not(None)
    tx.execute(update(TrialRow).where(is_heard).values(heartbeat_at=now()))
