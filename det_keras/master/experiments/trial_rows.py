"""The rows of an experiment's trials, within one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, select

from det_keras.master.database.models import ExperimentRow, MetricRow, TaskRow, TrialRow
from det_keras.master.database.notifier import task_topic
from det_keras.master.database.store import Transaction
from det_keras.protocol import states
from det_keras.protocol.metrics import VALIDATION
from det_keras.protocol.values import now


class TrialRows:
    """Finds, adds and ends the trials of one experiment; decides nothing.

    Args:
        tx: the transaction.
        experiment: the experiment's row in `tx`.
    """

    def __init__(self, tx: Transaction, experiment: ExperimentRow) -> None:
        self._tx = tx
        self._experiment = experiment

    def all(self) -> Sequence[TrialRow]:
        """Return all trials, oldest first."""
        return self._select()

    def unfinished(self) -> Sequence[TrialRow]:
        """Return the trials that are in no final state, oldest first."""
        return self._select(TrialRow.state.not_in(states.TERMINAL))

    def with_request_id(self, request_id: str) -> TrialRow:
        """Return the trial that the search created under this id."""
        (trial,) = self._select(TrialRow.request_id == request_id)
        return trial

    def with_external_id(self, external_id: str) -> TrialRow | None:
        """Return the trial of a script that named itself so, None if there is none."""
        return next(iter(self._select(TrialRow.external_id == external_id)), None)

    def add(self, *, context: str | None, slots: int, **values: Any) -> TrialRow:
        """Add a trial and its task.

        Args:
            context: digest of the files that the task gets; None for none.
            slots: the slots that the task occupies.
            values: columns of the trial.
        """
        experiment = self._experiment
        task = TaskRow(
            id=f"{experiment.id}.{uuid.uuid4()}",
            kind="TRIAL",
            owner_id=experiment.owner_id,
            job_id=experiment.job_id,
            context=context,
            slots=slots,
            start_time=now(),
        )
        self._tx.add(task)
        self._tx.flush()
        trial = TrialRow(
            experiment_id=experiment.id, task_id=task.id, summary_metrics={}, start_time=now(), **values
        )
        self._tx.add(trial)
        self._tx.flush()
        return trial

    def set_end(self, trial: TrialRow, time: datetime | None) -> None:
        """Set the end of a trial and of its task and wake the requests that wait for it; None if it runs again."""
        task = self._tx.get(TaskRow, trial.task_id)
        assert task is not None
        trial.end_time = task.end_time = time
        self._tx.notify(task_topic(task.id))

    def validations(
        self, trial: TrialRow, wanted: Callable[[Mapping[str, Any]], bool]
    ) -> list[Mapping[str, Any]]:
        """Return the metrics of a trial's validations that were not rolled back, earliest first.

        Args:
            trial: of the experiment.
            wanted: which metrics are returned.
        """
        query = (
            select(MetricRow.metrics)
            .where(MetricRow.trial_id == trial.id, MetricRow.archived.is_(False))
            .where(MetricRow.group == VALIDATION)
            .order_by(MetricRow.total_batches, MetricRow.id)
        )
        return [metrics for metrics in self._tx.scalars(query) if wanted(metrics)]

    def _select(self, *conditions: ColumnElement[bool]) -> Sequence[TrialRow]:
        of_experiment = TrialRow.experiment_id == self._experiment.id
        query = select(TrialRow).where(of_experiment, *conditions).order_by(TrialRow.id)
        return self._tx.scalars(query).all()
