"""Experiments as they travel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from det_keras.config import ExperimentConfig
from det_keras.config.secrets import masked
from det_keras.master import checkpoints
from det_keras.master.models import AllocationRow, CheckpointRow, ExperimentRow, TrialRow, UserRow
from det_keras.master.shapes.cluster import POOL, WORKSPACE_ID
from det_keras.master.shapes.trials import refined_state
from det_keras.master.wire import now, timestamp

__all__ = ["experiment_shapes", "validated_shape"]

# List views may shorten notes; the detail view never does, since clients send back what they got.
_NOTES_IN_LISTS = 200


@dataclass
class _Facts:
    """What other tables say of an experiment."""

    trial_ids: list[int] = field(default_factory=list)
    allocation_states: list[str] = field(default_factory=list)
    checkpoint_size: int = 0
    checkpoint_count: int = 0
    best_trial_id: int | None = None
    best_metric: float | None = None


def experiment_shapes(
    session: Session, rows: Sequence[ExperimentRow], *, is_list: bool = True
) -> list[dict[str, Any]]:
    """Return `Experiment` objects, with everything about them fetched in a few queries."""
    facts = _facts(session, rows)
    users = {row.id: row for row in session.scalars(select(UserRow))}
    shapes = []
    for row in rows:
        shape = _experiment(row, facts[row.id], users[row.owner_id])
        if is_list:
            shape["notes"] = row.notes[:_NOTES_IN_LISTS]
            shape["trialIds"] = []
        shapes.append(shape)
    return shapes


def validated_shape(config: ExperimentConfig, original: str, owner: UserRow) -> dict[str, Any]:
    """Return an `Experiment` that was only validated: clients parse it and throw it away."""
    row = ExperimentRow(
        id=0,
        state="UNSPECIFIED",
        archived=False,
        is_unmanaged=False,
        job_id="",
        name=config.name,
        description=config.description or "",
        labels=list(config.labels),
        notes="",
        config=config.to_dict(),
        original_config=original,
        context_size=0,
        progress=0.0,
        start_time=now(),
    )
    return _experiment(row, _Facts(), owner)


def _experiment(row: ExperimentRow, facts: _Facts, owner: UserRow) -> dict[str, Any]:
    # As it is stored it is whole and in today's form. Reading it into its classes for a thousand experiments of a
    # list would take seconds.
    config = row.config
    return {
        "id": row.id,
        "name": row.name,
        "description": row.description,
        "labels": row.labels,
        "notes": row.notes,
        "state": refined_state(row.state, facts.allocation_states, row.is_unmanaged),
        "archived": row.archived,
        "startTime": timestamp(row.start_time),
        "endTime": timestamp(row.end_time),
        "duration": int(((row.end_time or now()) - row.start_time).total_seconds()),
        "username": owner.username,
        "displayName": owner.display_name,
        "userId": owner.id,
        "numTrials": len(facts.trial_ids),
        "trialIds": facts.trial_ids,
        "jobId": row.job_id,
        "forkedFrom": row.parent_id,
        "progress": row.progress,
        "resourcePool": POOL,
        "workspaceId": WORKSPACE_ID,
        "workspaceName": "Uncategorized",
        "projectId": 1,
        "projectName": "Uncategorized",
        "projectOwnerId": owner.id,
        "parentArchived": False,
        "unmanaged": row.is_unmanaged,
        "searcherType": config["searcher"]["name"],
        "searcherMetric": config["searcher"]["metric"],
        "hyperparameters": config["hyperparameters"],
        "bestTrialId": facts.best_trial_id,
        "bestTrialSearcherMetric": facts.best_metric,
        "checkpointSize": str(facts.checkpoint_size),
        "checkpointCount": facts.checkpoint_count,
        "modelDefinitionSize": str(row.context_size),
        "externalExperimentId": row.external_id,
        "config": masked(config),
        "originalConfig": row.original_config,
    }


def _facts(session: Session, rows: Sequence[ExperimentRow]) -> dict[int, _Facts]:
    facts: dict[int, _Facts] = defaultdict(_Facts)
    smaller = {row.id: bool(row.config["searcher"]["smaller_is_better"]) for row in rows}
    _add_trials(session, smaller, facts)
    states = (
        select(TrialRow.experiment_id, AllocationRow.state)
        .join(TrialRow, TrialRow.task_id == AllocationRow.task_id)
        .where(TrialRow.experiment_id.in_(smaller), AllocationRow.end_time.is_(None))
    )
    for experiment_id, state in session.execute(states):
        facts[experiment_id].allocation_states.append(state)
    sizes = (
        select(TrialRow.experiment_id, func.sum(CheckpointRow.size), func.count())
        .join(TrialRow, TrialRow.id == CheckpointRow.trial_id)
        .where(TrialRow.experiment_id.in_(smaller), CheckpointRow.state != checkpoints.DELETED)
        .group_by(TrialRow.experiment_id)
    )
    for experiment_id, size, count in session.execute(sizes):
        facts[experiment_id].checkpoint_size = int(size or 0)
        facts[experiment_id].checkpoint_count = int(count)
    return facts


def _add_trials(session: Session, smaller: dict[int, bool], facts: dict[int, _Facts]) -> None:
    query = (
        select(TrialRow.experiment_id, TrialRow.id, TrialRow.searcher_metric_value)
        .where(TrialRow.experiment_id.in_(smaller))
        .order_by(TrialRow.id)
    )
    for experiment_id, trial_id, metric in session.execute(query):
        one = facts[experiment_id]
        one.trial_ids.append(trial_id)
        if metric is None:
            continue
        best = one.best_metric
        if best is None or (metric < best if smaller[experiment_id] else metric > best):
            one.best_trial_id, one.best_metric = trial_id, metric
