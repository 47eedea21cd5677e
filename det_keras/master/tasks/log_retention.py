"""How long the lines of logs are kept: as a trial says, else its experiment, else the master."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from det_keras.config import LONGEST_RETENTION_DAYS
from det_keras.master.database.models import ExperimentRow, LogRow, TaskRow, TrialRow
from det_keras.master.database.notifier import DELETIONS
from det_keras.master.database.store import Transaction
from det_keras.master.errors import InvalidArgumentError
from det_keras.protocol import states

#: In the place of a number of days.
FOR_EVER = -1


def days_of(config: dict[str, Any], trial_days: int | None, default: int | None) -> int:
    """Return for how many days after the end of an experiment the log of a trial is kept; `FOR_EVER` for no end.

    Args:
        config: of the experiment.
        trial_days: what was said of the trial alone.
        default: what the master says; None for `FOR_EVER`.
    """
    own = (config.get("retention_policy") or {}).get("log_retention_days")
    for days in (trial_days, own, default):
        if days is not None:
            return int(days)
    return FOR_EVER


def remaining_days(experiment: ExperimentRow, trial: TrialRow, default: int | None, now: datetime) -> int:
    """Return for how many days more the log of a trial is kept, a part of a day as a whole one."""
    days = days_of(experiment.config, trial.log_retention_days, default)
    if days == FOR_EVER or experiment.end_time is None:
        return days
    left = experiment.end_time + timedelta(days=days) - now
    return max(0, math.ceil(left / timedelta(days=1)))


def retain_experiment(tx: Transaction, experiment: ExperimentRow, days: int) -> None:
    """Keep the logs of all trials of an experiment for some days, whatever was said of single trials before.

    Raises:
        InvalidArgumentError: the number of days is invalid.
    """
    _check(days)
    experiment.config = {**experiment.config, "retention_policy": {"log_retention_days": days}}
    of_experiment = (TrialRow.experiment_id == experiment.id, TrialRow.log_retention_days.is_not(None))
    for trial in tx.scalars(select(TrialRow).where(*of_experiment)):
        trial.log_retention_days = None
    tx.notify(DELETIONS)


def retain_trial(tx: Transaction, trial: TrialRow, days: int) -> None:
    """Keep the log of a trial for some days, whatever its experiment says.

    Raises:
        InvalidArgumentError: the number of days is invalid.
    """
    _check(days)
    trial.log_retention_days = days
    tx.notify(DELETIONS)


def expired_tasks(session: Session, now: datetime, default: int | None) -> Sequence[str]:
    """Return the tasks whose log lines are to be deleted by `now`.

    Days count from the end of the experiment or job. 0 deletes at once.

    Args:
        session: to read with.
        now: the time.
        default: days that the master says; None for `FOR_EVER`.
    """
    ended = session.execute(
        select(ExperimentRow.id, ExperimentRow.job_id, ExperimentRow.config, ExperimentRow.end_time).where(
            ExperimentRow.state.in_(states.TERMINAL), ExperimentRow.end_time.is_not(None)
        )
    ).all()
    single: dict[int, list[TrialRow]] = defaultdict(list)
    for trial in session.scalars(select(TrialRow).where(TrialRow.log_retention_days.is_not(None))):
        single[trial.experiment_id].append(trial)
    # By the job and not by the trial: a continued trial had other tasks before.
    jobs = [row.job_id for row in ended if _is_over(row.end_time, days_of(row.config, None, default), now)]
    is_over = {
        task_id: _is_over(row.end_time, trial.log_retention_days, now)
        for row in ended
        for trial in single.get(row.id, ())
        for task_id in trial.task_ids
    }
    found = set(_with_lines(session, TaskRow.job_id, jobs)) - is_over.keys()
    found.update(_with_lines(session, TaskRow.id, [task_id for task_id, over in is_over.items() if over]))
    if default is not None and default != FOR_EVER:
        # Only generic jobs have configs of their own.
        query = select(TaskRow.id).where(TaskRow.config.is_not(None), _HAS_LINES)
        found.update(session.scalars(query.where(TaskRow.end_time <= now - timedelta(days=default))))
    return sorted(found)


_IDS_PER_QUERY = 500
_HAS_LINES = select(LogRow.id).where(LogRow.task_id == TaskRow.id).exists()


def _with_lines(session: Session, column: InstrumentedAttribute[str], ids: Sequence[str]) -> Iterator[str]:
    """Yield the tasks with one of these values in a column whose logs have lines."""
    for start in range(0, len(ids), _IDS_PER_QUERY):
        part = column.in_(ids[start : start + _IDS_PER_QUERY])
        yield from session.scalars(select(TaskRow.id).where(part, _HAS_LINES))


def _is_over(end: datetime, days: int | None, now: datetime) -> bool:
    return days is not None and days != FOR_EVER and end + timedelta(days=days) <= now


def _check(days: int) -> None:
    if not FOR_EVER <= days <= LONGEST_RETENTION_DAYS:
        raise InvalidArgumentError(
            f"`numDays` must be 0 to {LONGEST_RETENTION_DAYS}, or {FOR_EVER} for ever; received {days}."
        )
