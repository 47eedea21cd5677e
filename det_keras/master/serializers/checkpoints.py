"""Checkpoints as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import (
    CheckpointRow,
    ExperimentRow,
    MetricRow,
    ModelRow,
    ModelVersionRow,
    TrialRow,
)
from det_keras.master.reports.metrics import live_rows
from det_keras.master.wire import int64_map
from det_keras.protocol.metrics import TRAINING, VALIDATION
from det_keras.protocol.states import bare, named
from det_keras.protocol.values import timestamp


def checkpoint_shapes(session: Session, rows: Sequence[CheckpointRow]) -> list[dict[str, Any]]:
    """Return `Checkpoint` objects with the metrics that were reported at the same batch."""
    trial_ids = {row.trial_id for row in rows}
    trials = {row.id: row for row in session.scalars(select(TrialRow).where(TrialRow.id.in_(trial_ids)))}
    experiment_ids = {trial.experiment_id for trial in trials.values()}
    experiments = {
        row.id: row
        for row in session.scalars(select(ExperimentRow).where(ExperimentRow.id.in_(experiment_ids)))
    }
    steps = {row.steps_completed for row in rows}
    query = live_rows(list(trial_ids)).where(
        MetricRow.total_batches.in_(steps), MetricRow.group.in_((TRAINING, VALIDATION))
    )
    metrics = {(row.trial_id, row.total_batches, row.group): row for row in session.scalars(query)}
    registered: dict[str, list[dict[str, Any]]] = defaultdict(list)
    versions = (
        select(ModelVersionRow.checkpoint_uuid, ModelRow.name, ModelVersionRow.version)
        .join(ModelRow, ModelRow.id == ModelVersionRow.model_id)
        .where(ModelVersionRow.checkpoint_uuid.in_([row.uuid for row in rows]))
    )
    for uuid, name, version in session.execute(versions.order_by(ModelRow.id, ModelVersionRow.version)):
        registered[uuid].append({"modelName": name, "version": version})
    configs = {row.id: config_of(row).hidden() for row in experiments.values()}
    shapes = []
    for row in rows:
        trial = trials[row.trial_id]
        at = (row.trial_id, row.steps_completed)
        shapes.append(
            _checkpoint(
                row,
                trial,
                configs[trial.experiment_id],
                metrics.get((*at, TRAINING)),
                metrics.get((*at, VALIDATION)),
            )
            | {"modelVersions": registered[row.uuid]}
        )
    return shapes


def checkpoint_metadata(row: CheckpointRow) -> dict[str, Any]:
    """Return a checkpoint's metadata; later changes of the metadata do not affect `steps_completed`."""
    return {**row.meta, "steps_completed": row.steps_completed}


def doomed_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Return a `Checkpoint` in the form of the preview of a clean-up, which uses other field names."""
    training = shape["training"]
    return {
        "UUID": shape["uuid"],
        "TrialID": training["trialId"],
        "StepsCompleted": shape["metadata"]["steps_completed"],
        "State": bare(shape["state"]),
        "ReportTime": shape["reportTime"],
        "Resources": shape["resources"],
        "ValidationMetrics": training["validationMetrics"]["avgMetrics"],
        # Without this field the client counts the checkpoint as never validated.
        "step": {"validation": training["validationMetrics"]["avgMetrics"]},
    }


def _checkpoint(
    row: CheckpointRow,
    trial: TrialRow,
    config: dict[str, Any],
    training: MetricRow | None,
    validation: MetricRow | None,
) -> dict[str, Any]:
    return {
        "uuid": row.uuid,
        "taskId": row.task_id,
        "allocationId": row.allocation_id,
        "reportTime": timestamp(row.report_time),
        "state": named(row.state),
        "resources": int64_map(row.resources),
        "metadata": checkpoint_metadata(row),
        "storageId": row.storage_id,
        "training": {
            "trialId": trial.id,
            "experimentId": trial.experiment_id,
            "experimentConfig": config,
            "hparams": trial.hparams,
            "trainingMetrics": _metrics(training),
            "validationMetrics": _metrics(validation),
            "searcherMetric": None if validation is None else validation.searcher_metric,
        },
    }


def _metrics(row: MetricRow | None) -> dict[str, Any]:
    if row is None:
        return {"avgMetrics": {}, "batchMetrics": []}
    return {"avgMetrics": row.metrics, "batchMetrics": row.batch_metrics or []}
