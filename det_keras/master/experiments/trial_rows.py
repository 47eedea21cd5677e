"""The rows of an experiment's trials, within one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Update, and_, insert, select, update

from det_keras.master.database.change_feed import Subject
from det_keras.master.database.changes import NAMES_ROWS
from det_keras.master.database.models import AllocationRow, Base, ExperimentRow, MetricRow, TaskRow, TrialRow
from det_keras.master.database.notifier import task_topic
from det_keras.master.database.store import Transaction
from det_keras.protocol import states
from det_keras.protocol.metrics import VALIDATION
from det_keras.protocol.values import now

#: Most trials that one transaction moves without asking each of them: it takes some milliseconds.
MOST_MOVED = 200

#: Most trials that one transaction ends, each with an event of its search: it takes some milliseconds, too.
MOST_ENDED = 25
# Most names in one statement: SQLite's limit of variables in older builds is 999.
_MOST_NAMED = 500

# The tasks that have a process, or are about to.
_LIVE = select(AllocationRow.task_id).where(AllocationRow.end_time.is_(None))
#: The trials that are to end: they waited for a longer length, and get none.
IS_CLOSED_AND_IDLE = and_(
    TrialRow.state.in_(states.GOING_ON),
    TrialRow.is_closed.is_(True),
    TrialRow.has_work.is_(False),
    TrialRow.task_id.not_in(_LIVE),
)


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

    def newest(self) -> TrialRow | None:
        """Return the newest trial, None if there is none."""
        of_experiment = TrialRow.experiment_id == self._experiment.id
        return self._tx.scalar(select(TrialRow).where(of_experiment).order_by(TrialRow.id.desc()).limit(1))

    def has_unfinished(self) -> bool:
        """Return whether a trial is in no final state."""
        query = select(TrialRow.id).where(
            TrialRow.experiment_id == self._experiment.id, TrialRow.state.in_(states.UNFINISHED)
        )
        return self._tx.scalar(query.limit(1)) is not None

    def running(self, wanted: Collection[str]) -> Sequence[TrialRow]:
        """Return the trials in one of the states that have a process, oldest first."""
        return self._select(TrialRow.state.in_(wanted), TrialRow.task_id.in_(_LIVE))

    def move_waiting(self, wanted: Collection[str], state: str) -> int:
        """Give the oldest trials without a process, at most `MOST_MOVED`, another state; return their number.

        Args:
            wanted: the states of the trials that are moved.
            state: their new state; a final one also ends their tasks.
        """
        query = (
            select(TrialRow.id, TrialRow.task_id)
            .where(TrialRow.experiment_id == self._experiment.id, TrialRow.state.in_(wanted))
            .where(TrialRow.task_id.not_in(_LIVE))
            .order_by(TrialRow.id)
            .limit(MOST_MOVED)
        )
        moved = {row.id: row.task_id for row in self._tx.execute(query)}
        self._move(moved, state)
        return len(moved)

    def not_begun(self) -> Sequence[TrialRow]:
        """Return the trials that have never had a process, oldest first."""
        return self._select(TrialRow.state.in_(states.GOING_ON), TrialRow.run_id == 0)

    def withdraw(self, trials: Sequence[TrialRow]) -> None:
        """End trials that have not begun."""
        for start in range(0, len(trials), _MOST_NAMED):
            named = trials[start : start + _MOST_NAMED]
            self._move({trial.id: trial.task_id for trial in named}, states.CANCELED)

    def _move(self, moved: Mapping[int, str], state: str) -> None:
        """Give trials without a process, by their numbers with their tasks, another state."""
        if not moved:
            return
        values: dict[str, object] = {"state": state}
        if state in states.TERMINAL:
            values["end_time"] = now()
            self._update(update(TaskRow).where(TaskRow.id.in_(moved.values())).values(end_time=now()))
            for task_id in moved.values():
                self._tx.notify(task_topic(task_id))
        self._update(update(TrialRow).where(TrialRow.id.in_(moved)).values(values))
        self._note_changes(moved.values(), moved)

    def close(self, request_ids: Sequence[str]) -> None:
        """Note that trials get no further length."""
        of_experiment = TrialRow.experiment_id == self._experiment.id
        for start in range(0, len(request_ids), _MOST_NAMED):
            named = TrialRow.request_id.in_(request_ids[start : start + _MOST_NAMED])
            self._update(update(TrialRow).where(of_experiment, named).values(is_closed=True))

    def closed_and_idle(self) -> Sequence[TrialRow]:
        """Return the oldest trials, at most `MOST_ENDED`, that get no further length and have no process."""
        return self._tx.scalars(
            select(TrialRow)
            .where(TrialRow.experiment_id == self._experiment.id, IS_CLOSED_AND_IDLE)
            .order_by(TrialRow.id)
            .limit(MOST_ENDED)
        ).all()

    def _update(self, statement: Update) -> None:
        self._tx.execute(statement, execution_options={NAMES_ROWS: True})

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
        self.add_all([values], context=context, slots=slots)
        trial = self.newest()
        assert trial is not None
        return trial

    def add_all(self, trials: Sequence[Mapping[str, Any]], *, context: str | None, slots: int) -> None:
        """Add trials and their tasks, with one statement for all of a table.

        Plain values: objects for the rows would take four times as long, in which no other writer has its turn.

        Args:
            trials: columns of each trial, the same of each.
            context: digest of the files that the tasks get; None for none.
            slots: the slots that each task occupies.
        """
        experiment, time = self._experiment, now()
        # The queue orders them by this time.
        starts = [time + timedelta(microseconds=index) for index in range(len(trials))]
        task_ids = [f"{experiment.id}.{uuid.uuid4()}" for _ in trials]
        of_all_tasks: dict[str, Any] = {
            "kind": "TRIAL",
            "owner_id": experiment.owner_id,
            "job_id": experiment.job_id,
            "context": context,
            "slots": slots,
        }
        self._insert(
            TaskRow,
            [
                {"id": task_id, "start_time": start, **of_all_tasks}
                for task_id, start in zip(task_ids, starts, strict=True)
            ],
        )
        self._insert(
            TrialRow,
            [
                {
                    "experiment_id": experiment.id,
                    "task_id": task_id,
                    "summary_metrics": {},
                    "start_time": start,
                    **values,
                }
                for task_id, start, values in zip(task_ids, starts, trials, strict=True)
            ],
        )
        newest = (
            select(TrialRow.id).where(TrialRow.experiment_id == experiment.id).order_by(TrialRow.id.desc())
        )
        self._note_changes(task_ids, self._tx.scalars(newest.limit(len(trials))))

    def _insert(self, table: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
        self._tx.execute(insert(table), rows, execution_options={NAMES_ROWS: True})

    def _note_changes(self, task_ids: Iterable[str], trial_ids: Iterable[int]) -> None:
        """Say which rows were changed by statements that pass by the session's rows."""
        self._tx.queue_changes.tasks.update(task_ids)
        self._tx.subjects.update(Subject("trial", trial_id) for trial_id in trial_ids)

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
