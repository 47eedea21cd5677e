"""Experiments as they travel."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Text, func, select, type_coerce
from sqlalchemy.orm import Session

from det_keras.config import ExperimentConfig
from det_keras.config.secrets import masked
from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.database.models import AllocationRow, CheckpointRow, ExperimentRow, TrialRow, UserRow
from det_keras.master.serializers.cluster import POOL, WORKSPACE_ID
from det_keras.master.serializers.trials import refined_state
from det_keras.master.wire import encode_json
from det_keras.protocol.values import now, timestamp

__all__ = ["LIST_COLUMNS", "ListedExperiment", "experiment_shape", "listed_experiments", "validated_shape"]

#: What a list needs of an experiment. Its config as it is stored: reading it would be most of the work of a long
#: list. Without the state of its search, which is large as well.
LIST_COLUMNS = (
    *(column for column in ExperimentRow.__table__.columns if column.name not in ("config", "searcher")),
    type_coerce(ExperimentRow.config, Text).label("config_text"),
)

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


@dataclass(frozen=True)
class ShownConfig:
    """What a list says of a config.

    Attributes:
        searcher: its name.
        metric: the searcher's.
        smaller_is_better: how that compares.
        text: the whole of it as JSON, without its secrets.
        hyperparameters: of it, as JSON.
    """

    searcher: str
    metric: str
    smaller_is_better: bool
    text: str
    hyperparameters: str


@dataclass(frozen=True)
class ListedExperiment:
    """An `Experiment` of a list.

    Attributes:
        shape: all of it but the config.
        config: the rest.
    """

    shape: dict[str, Any]
    config: ShownConfig

    def to_json(self) -> str:
        """Return it as it travels."""
        fields = encode_json(self.shape).decode()
        return f'{fields[:-1]},"config":{self.config.text},"hyperparameters":{self.config.hyperparameters}}}'


def listed_experiments(session: Session, rows: Sequence[Any]) -> list[ListedExperiment]:
    """Return experiments, of which `rows` has the columns `LIST_COLUMNS`, for a list, in a few queries."""
    configs = {row.id: _shown(row.config_text) for row in rows}
    facts = _facts(session, {number: one.smaller_is_better for number, one in configs.items()})
    users = {row.id: row for row in session.scalars(select(UserRow))}
    found = []
    for row in rows:
        shape = _experiment(row, configs[row.id], facts[row.id], users[row.owner_id])
        shape |= {"notes": row.notes[:_NOTES_IN_LISTS], "trialIds": []}
        found.append(ListedExperiment(shape, configs[row.id]))
    return found


def experiment_shape(session: Session, row: ExperimentRow) -> dict[str, Any]:
    """Return an `Experiment` with everything about it."""
    config = _shown(encode_json(row.config).decode())
    facts = _facts(session, {row.id: config.smaller_is_better})
    owner = session.get(UserRow, row.owner_id)
    assert owner is not None
    return _whole(row, config, facts[row.id], owner)


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
    return _whole(row, _shown(encode_json(row.config).decode()), _Facts(), owner)


# A list of a thousand is mostly configs, and they hardly ever change.
@functools.lru_cache(maxsize=2048)
def _shown(text: str) -> ShownConfig:
    # As it is stored it is whole and in today's form. Reading it into its classes would take seconds.
    config = json.loads(text)
    searcher = config["searcher"]
    return ShownConfig(
        searcher=searcher["name"],
        metric=searcher["metric"],
        smaller_is_better=bool(searcher["smaller_is_better"]),
        text=encode_json(masked(config)).decode(),
        hyperparameters=encode_json(config["hyperparameters"]).decode(),
    )


def _whole(row: ExperimentRow, config: ShownConfig, facts: _Facts, owner: UserRow) -> dict[str, Any]:
    shape = _experiment(row, config, facts, owner)
    return {**shape, "config": masked(row.config), "hyperparameters": row.config["hyperparameters"]}


def _experiment(row: Any, config: ShownConfig, facts: _Facts, owner: UserRow) -> dict[str, Any]:
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
        "searcherType": config.searcher,
        "searcherMetric": config.metric,
        "bestTrialId": facts.best_trial_id,
        "bestTrialSearcherMetric": facts.best_metric,
        "checkpointSize": str(facts.checkpoint_size),
        "checkpointCount": facts.checkpoint_count,
        "modelDefinitionSize": str(row.context_size),
        "externalExperimentId": row.external_id,
        "originalConfig": row.original_config,
    }


def _facts(session: Session, smaller: dict[int, bool]) -> dict[int, _Facts]:
    """Return facts about experiments, of which `smaller` says whose metric is better when it is smaller."""
    facts: dict[int, _Facts] = defaultdict(_Facts)
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
