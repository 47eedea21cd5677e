"""Trials: describe, kill, and read their reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from sqlalchemy import ColumnClause, Select, String, cast, column, func, literal, select, union_all
from sqlalchemy.orm import Session
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import Response

from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.database.models import CheckpointRow, MetricRow, TaskRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError, NotFoundError
from det_keras.master.experiments.reporting import controller_of
from det_keras.master.serializers.trials import (
    REPORT_COLUMNS,
    checkpoint_workload,
    metrics_reports,
    metrics_workload,
    trial_shapes,
)
from det_keras.master.server.calls import MasterDep, PageDep, choice, open_download
from det_keras.master.server.responses import reply, stream_reply
from det_keras.protocol import states
from det_keras.protocol.metrics import TRAINING, VALIDATION

router = APIRouter(prefix="/api/v1/trials")

_FILTERS = ("UNSPECIFIED", "CHECKPOINT", "VALIDATION", "CHECKPOINT_OR_VALIDATION")
_ROWS_PER_LINE = _ROWS_PER_QUERY = 1000
_CHECKPOINT = "checkpoint"
_DOWNLOAD = Depends(open_download)


@router.get("/{trial_id}")
def detail(master: MasterDep, trial_id: int) -> Response:
    """Describe a trial."""
    with master.store.reading() as session:
        row = find_trial(session, trial_id)
        (shape,) = trial_shapes(session, [row])
        task = session.get(TaskRow, row.task_id)
    assert task is not None
    shape["waitReason"] = (
        "" if row.state in states.TERMINAL else master.queue.wait_reason(task.job_id, task.id)
    )
    return reply({"trial": shape})


@router.post("/{trial_id}/kill")
def kill(master: MasterDep, trial_id: int) -> Response:
    """Kill a trial; its experiment continues."""
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        experiment = find_experiment(tx, trial.experiment_id)
        if experiment.state in states.TERMINAL:
            raise NotFoundError(f"experiment '{experiment.id}' not found among running experiments")
        controller_of(tx, experiment).stop_trial(trial, states.STOPPING_KILLED)
    return reply()


@router.get("/{trial_id}/workloads")
def workloads(
    master: MasterDep,
    trial_id: int,
    page: PageDep,
    wanted: Annotated[
        str, Query(alias="filter", description="Such as `FILTER_OPTION_CHECKPOINT`.")
    ] = "FILTER_OPTION_UNSPECIFIED",
    include_batch_metrics: Annotated[bool, Query(alias="includeBatchMetrics")] = False,
    metric_type: Annotated[str, Query(alias="metricType")] = "METRIC_TYPE_UNSPECIFIED",
    remove_deleted: Annotated[bool, Query(alias="removeDeletedCheckpoints")] = False,
) -> Response:
    """List the reports of a trial, each with its batch."""
    kind = choice(wanted, "FILTER_OPTION_", _FILTERS)
    with_training = kind == "UNSPECIFIED" and metric_type != "METRIC_TYPE_VALIDATION"
    with_validation = kind != "CHECKPOINT" and metric_type != "METRIC_TYPE_TRAINING"
    groups = [TRAINING] * with_training + [VALIDATION] * with_validation
    with master.store.reading() as session:
        find_trial(session, trial_id)
        parts = [_keys_of_metrics(trial_id, group) for group in groups]
        if kind != "VALIDATION":
            parts.append(_keys_of_checkpoints(trial_id, with_deleted=not remove_deleted))
        total = sum(session.scalar(select(func.count()).select_from(part.subquery())) or 0 for part in parts)
        start, end = page.bounds(total)
        places: list[ColumnClause[Any]] = [column(name) for name in ("batch", "time", "place", "key")]
        order = [place.desc() if page.is_descending else place.asc() for place in places]
        query = union_all(*parts).order_by(*order).limit(end - start).offset(start)
        keys = [(found.kind, found.key) for found in session.execute(query)]
        shapes = _workloads(session, keys, with_batches=include_batch_metrics)
    return reply({"workloads": shapes, "pagination": page.described(start, end, total)})


@router.get("/metrics/trial_metrics", dependencies=[_DOWNLOAD])
def metrics(
    master: MasterDep,
    group: str = "",
    trial_ids: Annotated[list[int], Query(alias="trialIds")] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Stream all reports of a group."""
    if not group:
        raise InvalidArgumentError("`group` is required: the name of a group of metrics.")
    return _stream(master, group, trial_ids)


@router.get("/metrics/training_metrics", dependencies=[_DOWNLOAD])
def training_metrics(
    master: MasterDep,
    trial_ids: Annotated[list[int], Query(alias="trialIds")] = [],  # noqa: B006
) -> Response:
    """Stream all reports of training."""
    return _stream(master, TRAINING, trial_ids)


@router.get("/metrics/validation_metrics", dependencies=[_DOWNLOAD])
def validation_metrics(
    master: MasterDep,
    trial_ids: Annotated[list[int], Query(alias="trialIds")] = [],  # noqa: B006
) -> Response:
    """Stream all reports of validation."""
    return _stream(master, VALIDATION, trial_ids)


def _stream(master: EmbeddedMaster, group: str, trial_ids: Sequence[int]) -> Response:
    if not trial_ids or len(set(trial_ids)) < len(trial_ids):
        raise InvalidArgumentError("`trialIds` must name trials, each once.")
    with master.store.reading() as session:
        for trial_id in trial_ids:
            find_trial(session, trial_id)
    return stream_reply(iterate_in_threadpool(_lines(master, group, trial_ids)))


def _lines(master: EmbeddedMaster, group: str, trial_ids: Sequence[int]) -> Iterator[bytes]:
    with master.store.reading() as session:
        for trial_id in trial_ids:
            wanted = (
                (MetricRow.trial_id == trial_id) & MetricRow.archived.is_(False),
                (MetricRow.group == group) & MetricRow.total_batches.is_not(None),
            )
            order = [MetricRow.total_batches, MetricRow.id]
            runs = select(func.min(MetricRow.run_id), func.max(MetricRow.run_id)).where(*wanted)
            first, last = session.execute(runs).one()
            if first != last:
                # Only if needed: an index has the order of a single run, so that nothing is sorted.
                order.insert(0, MetricRow.run_id)
            query = select(*REPORT_COLUMNS).where(*wanted).order_by(*order)
            query = query.execution_options(yield_per=_ROWS_PER_LINE)
            for rows in session.connection().execute(query).partitions(_ROWS_PER_LINE):
                yield f'{{"result":{{"metrics":[{metrics_reports(trial_id, group, rows)}]}}}}\n'.encode()


def _keys_of_metrics(trial_id: int, group: str) -> Select[Any]:
    """Return the query for the places of reports in a list, and the keys of their rows."""
    return _keys(MetricRow.total_batches, MetricRow.end_time, group, cast(MetricRow.id, String)).where(
        MetricRow.trial_id == trial_id, MetricRow.group == group, MetricRow.archived.is_(False)
    )


def _keys_of_checkpoints(trial_id: int, *, with_deleted: bool) -> Select[Any]:
    found = _keys(
        CheckpointRow.steps_completed,
        CheckpointRow.report_time,
        _CHECKPOINT,
        cast(CheckpointRow.uuid, String),
    ).where(CheckpointRow.trial_id == trial_id)
    return found if with_deleted else found.where(CheckpointRow.state != checkpoints.DELETED)


def _keys(batch: Any, time: Any, kind: str, key: Any) -> Select[Any]:
    place = (TRAINING, VALIDATION, _CHECKPOINT).index(kind)
    return select(
        batch.label("batch"),
        time.label("time"),
        literal(place).label("place"),
        literal(kind).label("kind"),
        key.label("key"),
    )


def _workloads(
    session: Session, keys: Sequence[tuple[str, str]], *, with_batches: bool
) -> list[dict[str, Any]]:
    """Return the reports and checkpoints with these keys, in the same order."""
    shapes: dict[tuple[str, str], dict[str, Any]] = {}
    for first in range(0, len(keys), _ROWS_PER_QUERY):
        part = keys[first : first + _ROWS_PER_QUERY]
        uuids = [key for kind, key in part if kind == _CHECKPOINT]
        numbers = [int(key) for kind, key in part if kind != _CHECKPOINT]
        for row in session.scalars(select(MetricRow).where(MetricRow.id.in_(numbers))):
            shapes[row.group, str(row.id)] = metrics_workload(row, with_batches=with_batches)
        for record in session.scalars(select(CheckpointRow).where(CheckpointRow.uuid.in_(uuids))):
            shapes[_CHECKPOINT, record.uuid] = checkpoint_workload(record)
        session.expunge_all()
    nothing = {TRAINING: None, VALIDATION: None, _CHECKPOINT: None}
    return [{**nothing, kind: shapes[kind, key]} for kind, key in keys]
