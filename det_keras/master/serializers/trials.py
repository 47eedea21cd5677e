"""Trials and their metrics as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, func, select, type_coerce
from sqlalchemy.orm import Session

from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import (
    AllocationRow,
    CheckpointRow,
    ExperimentRow,
    MetricRow,
    TrialRow,
    utc_text,
)
from det_keras.master.lifecycle import refined_state
from det_keras.master.reports.pace import paces
from det_keras.master.serializers.checkpoints import checkpoint_metadata
from det_keras.master.wire import int64_map
from det_keras.protocol.metrics import VALIDATION
from det_keras.protocol.states import RUNNING, named
from det_keras.protocol.values import now, timestamp

#: All states of trials in the REST API.
TRIAL_STATES = (
    "ACTIVE",
    "PAUSED",
    "STOPPING_COMPLETED",
    "STOPPING_CANCELED",
    "STOPPING_KILLED",
    "STOPPING_ERROR",
    "COMPLETED",
    "CANCELED",
    "ERROR",
    "QUEUED",
    "PULLING",
    "STARTING",
    "RUNNING",
)

#: The columns for `metrics_reports`, as stored text: parsing and encoding it again would be most of a stream's work.
REPORT_COLUMNS = (
    MetricRow.id,
    MetricRow.run_id,
    MetricRow.total_batches,
    utc_text(MetricRow.end_time).label("end_time"),
    type_coerce(MetricRow.metrics, Text).label("metrics"),
    type_coerce(MetricRow.batch_metrics, Text).label("batch_metrics"),
)


@dataclass
class _Stored:
    """The total size and number of a trial's checkpoints."""

    size: int = 0
    count: int = 0


def trial_shapes(session: Session, rows: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Return `Trial` objects, with a few queries for all of them."""
    if not rows:
        return []
    ids = [row.id for row in rows]
    allocation_states = states_of_allocations(session, [row.task_id for row in rows])
    run_s = _run_seconds(session, rows)
    stored = _stored(session, ids)
    validations = _validations(session, rows)
    best_checkpoints = _best_checkpoints(session, rows, validations)
    experiments = _experiments(session, rows)
    states = {
        row.id: refined_state(
            row.state, allocation_states[row.task_id], experiments[row.experiment_id].is_unmanaged
        )
        for row in rows
    }
    running = [trial_id for trial_id, state in states.items() if state == named(RUNNING)]
    speeds = paces(session, running, now())
    return [
        _trial(
            row,
            state=states[row.id],
            pace=speeds.get(row.id),
            run_s=None if experiments[row.experiment_id].is_unmanaged else run_s[row.id],
            stored=stored[row.id],
            best=validations.get(row.best_validation_id),
            latest=validations.get(row.latest_validation_id),
            best_checkpoint=best_checkpoints.get(row.id),
            max_restarts=config_of(experiments[row.experiment_id]).max_restarts,
        )
        for row in rows
    ]


def states_of_allocations(session: Session, task_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the states of the live allocations of tasks."""
    result: dict[str, list[str]] = defaultdict(list)
    query = select(AllocationRow.task_id, AllocationRow.state).where(AllocationRow.end_time.is_(None))
    for task_id, state in session.execute(query.where(AllocationRow.task_id.in_(task_ids))):
        result[task_id].append(state)
    return result


def metrics_workload(row: MetricRow, *, with_batches: bool = False) -> dict[str, Any]:
    """Return a report as a `MetricsWorkload`."""
    batches = row.batch_metrics if with_batches else None
    return {
        "metrics": {"avgMetrics": row.metrics, "batchMetrics": batches},
        "numInputs": 0,
        "totalBatches": row.total_batches or 0,
        "endTime": timestamp(row.end_time),
    }


def checkpoint_workload(row: CheckpointRow) -> dict[str, Any]:
    """Return a checkpoint as a `CheckpointWorkload`."""
    return {
        "uuid": row.uuid,
        "state": named(row.state),
        "totalBatches": row.steps_completed,
        "endTime": timestamp(row.report_time),
        "resources": int64_map(row.resources),
        "metadata": checkpoint_metadata(row),
    }


def metrics_reports(trial_id: int, group: str, rows: Iterable[Any]) -> str:
    """Return reports of one group as JSON objects, separated by commas.

    Their inner keys are snake_case.

    Args:
        trial_id: number of the trial.
        group: the group of all reports.
        rows: the columns `REPORT_COLUMNS` of reports that were not rolled back.
    """
    place = f'"trialId":{trial_id},"group":{json.dumps(group)},"archived":false'
    if group == VALIDATION:
        return ",".join(
            f'{{"id":{number},{place},"trialRunId":{run_id},"totalBatches":{steps},'
            f'"endTime":"{_milliseconds(time)}","metrics":{{"validation_metrics":{metrics}}}}}'
            for number, run_id, steps, time, metrics, _ in rows
        )
    return ",".join(
        f'{{"id":{number},{place},"trialRunId":{run_id},"totalBatches":{steps},'
        f'"endTime":"{_milliseconds(time)}",'
        f'"metrics":{{"avg_metrics":{metrics},"batch_metrics":{batches or "null"}}}}}'
        for number, run_id, steps, time, metrics, batches in rows
    )


def _milliseconds(time: str) -> str:
    """Return a text of `utc_text` as a time of the REST API."""
    return f"{time[:10]}T{time[11:23]}000Z"


def _trial(
    row: TrialRow,
    *,
    state: str,
    pace: dict[str, float] | None,
    run_s: float | None,
    stored: _Stored,
    best: MetricRow | None,
    latest: MetricRow | None,
    best_checkpoint: CheckpointRow | None,
    max_restarts: int,
) -> dict[str, Any]:
    return {
        "id": row.id,
        "experimentId": row.experiment_id,
        "state": state,
        "startTime": timestamp(row.start_time),
        "endTime": timestamp(row.end_time),
        "hparams": row.hparams,
        "restarts": min(row.restarts, max_restarts),
        "totalBatchesProcessed": row.total_batches,
        "taskId": row.task_id,
        "taskIds": row.task_ids,
        "externalTrialId": row.external_id,
        "runnerState": row.runner_state,
        "progress": row.progress,
        # Not in Determined's API.
        "pace": pace,
        "bestValidation": None if best is None else metrics_workload(best),
        "latestValidation": None if latest is None else metrics_workload(latest),
        "bestCheckpoint": None if best_checkpoint is None else checkpoint_workload(best_checkpoint),
        "summaryMetrics": row.summary_metrics,
        "searcherMetricValue": row.searcher_metric_value,
        # The master knows no runs of a trial that another machine started by itself.
        "wallClockTime": ((row.end_time or now()) - row.start_time).total_seconds()
        if run_s is None
        else run_s,
        "totalCheckpointSize": str(stored.size),
        "checkpointCount": stored.count,
        "warmStartCheckpointUuid": row.warm_start_uuid,
        "metadata": row.run_metadata,
        "logRetentionDays": row.log_retention_days,
        "logPolicyMatched": row.log_policy_matched,
    }


def _run_seconds(session: Session, rows: Sequence[TrialRow]) -> dict[int, float]:
    """Return how long each trial has run, without the time in which it was queued or paused."""
    trial_ids = {task_id: row.id for row in rows for task_id in row.task_ids}
    query = select(AllocationRow.task_id, AllocationRow.start_time, AllocationRow.end_time)
    time = now()
    result: dict[int, float] = defaultdict(float)
    for task_id, start, end in session.execute(query.where(AllocationRow.task_id.in_(trial_ids))):
        result[trial_ids[task_id]] += ((end or time) - start).total_seconds()
    return result


def _stored(session: Session, trial_ids: Sequence[int]) -> dict[int, _Stored]:
    result: dict[int, _Stored] = defaultdict(_Stored)
    query = (
        select(CheckpointRow.trial_id, func.sum(CheckpointRow.size), func.count())
        .where(CheckpointRow.trial_id.in_(trial_ids), CheckpointRow.state != checkpoints.DELETED)
        .group_by(CheckpointRow.trial_id)
    )
    for trial_id, size, count in session.execute(query):
        result[trial_id] = _Stored(int(size or 0), int(count))
    return result


def _validations(session: Session, rows: Sequence[TrialRow]) -> dict[int | None, MetricRow]:
    ids = {
        number
        for row in rows
        for number in (row.best_validation_id, row.latest_validation_id)
        if number is not None
    }
    return {row.id: row for row in session.scalars(select(MetricRow).where(MetricRow.id.in_(ids)))}


def _best_checkpoints(
    session: Session, rows: Sequence[TrialRow], validations: dict[int | None, MetricRow]
) -> dict[int, CheckpointRow]:
    steps = {
        row.id: validations[row.best_validation_id].total_batches for row in rows if row.best_validation_id
    }
    query = select(CheckpointRow).where(
        CheckpointRow.trial_id.in_(steps), CheckpointRow.state == checkpoints.COMPLETED
    )
    return {row.trial_id: row for row in session.scalars(query) if row.steps_completed == steps[row.trial_id]}


def _experiments(session: Session, rows: Sequence[TrialRow]) -> dict[int, ExperimentRow]:
    ids = {row.experiment_id for row in rows}
    return {row.id: row for row in session.scalars(select(ExperimentRow).where(ExperimentRow.id.in_(ids)))}
