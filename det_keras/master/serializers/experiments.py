"""Experiments as JSON."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Text, func, select, type_coerce
from sqlalchemy.orm import Session

from det_keras.config import ExperimentConfig
from det_keras.config.secrets import masked
from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.database.models import (
    AllocationRow,
    CheckpointRow,
    ExperimentRow,
    ProjectRow,
    TrialRow,
    UserRow,
    WorkspaceRow,
)
from det_keras.master.lifecycle import refined_state
from det_keras.master.serializers.trials import TRIAL_STATES
from det_keras.master.tasks.scheduling import POOL
from det_keras.master.wire import encode_json
from det_keras.protocol.states import PAUSED
from det_keras.protocol.values import now, timestamp

#: The states in which an experiment is shown.
EXPERIMENT_STATES = (*TRIAL_STATES, "DELETING", "DELETE_FAILED", "DELETED")

#: The columns for a list of experiments. The config is read as the stored text, because parsing it would be most of the
#: work of a long list. So are the labels, because rows are the keys of a cache. The state of the search, which is large
#: as well, is omitted.
LIST_COLUMNS = (
    *(
        column
        for column in ExperimentRow.__table__.columns
        if column.name not in ("config", "labels", "searcher")
    ),
    type_coerce(ExperimentRow.config, Text).label("config_text"),
    type_coerce(ExperimentRow.labels, Text).label("labels_text"),
)

# Lists shorten notes. The detail view does not: clients send the notes back when they change other fields.
_NOTES_IN_LISTS = 200


# Complete before it is hashed.
@dataclass(unsafe_hash=True)
class _Facts:
    """Facts about an experiment from other tables.

    Attributes:
        last_end: when its last allocation ended, if it is paused and none runs.
    """

    trial_ids: tuple[int, ...] = ()
    allocation_states: frozenset[str] = frozenset()
    checkpoint_size: int = 0
    checkpoint_count: int = 0
    best_trial_id: int | None = None
    best_metric: float | None = None
    last_end: datetime | None = None


class _Owner(NamedTuple):
    """The user whose experiment it is."""

    id: int
    username: str
    display_name: str


class _Place(NamedTuple):
    """The project and the workspace in which it is."""

    project_id: int
    project: str
    owner_id: int
    workspace_id: int
    workspace: str
    is_archived: bool


@dataclass(frozen=True)
class ShownConfig:
    """The parts of a config that a list shows.

    Attributes:
        searcher: name of the search method.
        metric: the searcher's metric.
        smaller_is_better: how the metric compares.
        text: the whole config as JSON, without its secrets.
        hyperparameters: the config's hyperparameters as JSON.
    """

    searcher: str
    metric: str
    smaller_is_better: bool
    text: bytes
    hyperparameters: bytes


@dataclass(frozen=True)
class ListedExperiment:
    """An `Experiment` of a list.

    Attributes:
        row: has the columns `LIST_COLUMNS`.
        facts: about it, from other tables.
        owner: its user.
        place: where it is.
    """

    row: Any
    facts: _Facts
    owner: _Owner
    place: _Place

    @functools.cached_property
    def shape(self) -> dict[str, Any]:
        """All fields except those of the config, and except the duration, which changes all the time."""
        return _listed_shape(self.row, self.facts, self.owner, self.place)

    @property
    def smaller_is_better(self) -> bool:
        """How its metric compares."""
        return _shown(self.row.config_text).smaller_is_better

    @property
    def has_run(self) -> bool:
        """Whether it ever had a duration: one that waits since it was created has none."""
        is_waiting = self.row.state == PAUSED and not self.facts.allocation_states
        return self.row.is_unmanaged or not is_waiting or self.facts.last_end is not None

    @property
    def until(self) -> datetime | None:
        """When its duration stopped growing; None while it grows."""
        return self.row.end_time or self.facts.last_end

    def to_json(self) -> bytes:
        """Return the `Experiment` as JSON text."""
        config = _shown(self.row.config_text)
        fields = _listed_text(self.row, self.facts, self.owner, self.place)
        duration = _duration(self.row, self.facts)
        return b'%s,"duration":%d,"config":%s,"hyperparameters":%s}' % (
            fields[:-1],
            duration,
            config.text,
            config.hyperparameters,
        )


def listed_experiments(session: Session, rows: Sequence[Any]) -> list[ListedExperiment]:
    """Return experiments for a list, with a few queries; `rows` have the columns `LIST_COLUMNS`."""
    facts = _facts(session, {row.id: _shown(row.config_text).smaller_is_better for row in rows})
    owners = {user.id: _owner(user) for user in session.scalars(select(UserRow))}
    places = _places(session)
    return [
        ListedExperiment(row, facts[row.id], owners[row.owner_id], places[row.project_id]) for row in rows
    ]


def experiment_shape(session: Session, row: ExperimentRow) -> dict[str, Any]:
    """Return an `Experiment` with all fields."""
    config = _shown(encode_json(row.config).decode())
    facts = _facts(session, {row.id: config.smaller_is_better})
    owner = session.get(UserRow, row.owner_id)
    assert owner is not None
    return _whole(row, config, facts[row.id], _owner(owner), _places(session)[row.project_id])


def validated_shape(
    session: Session, config: ExperimentConfig, original: str, owner: UserRow, project_id: int
) -> dict[str, Any]:
    """Return an `Experiment` that was only validated: clients parse it and discard it.

    Args:
        session: to read with.
        config: the validated config.
        original: the config as submitted, without its secrets.
        owner: the user that submitted it.
        project_id: number of the project in which it would be.
    """
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
        project_id=project_id,
        progress=0.0,
        start_time=now(),
    )
    return _whole(
        row, _shown(encode_json(row.config).decode()), _Facts(), _owner(owner), _places(session)[project_id]
    )


# A list of a thousand experiments consists mostly of configs, which hardly ever change.
@functools.lru_cache(maxsize=2048)
def _shown(text: str) -> ShownConfig:
    # A stored config is complete and in the current form. Parsing all configs into their classes would take seconds.
    config = json.loads(text)
    searcher = config["searcher"]
    return ShownConfig(
        searcher=searcher["name"],
        metric=searcher["metric"],
        smaller_is_better=bool(searcher["smaller_is_better"]),
        text=encode_json(masked(config)),
        hyperparameters=encode_json(config["hyperparameters"]),
    )


# Most experiments of a long list have not changed since it was read before.
@functools.lru_cache(maxsize=2048)
def _listed_text(row: Any, facts: _Facts, owner: _Owner, place: _Place) -> bytes:
    return encode_json(_listed_shape(row, facts, owner, place))


def _listed_shape(row: Any, facts: _Facts, owner: _Owner, place: _Place) -> dict[str, Any]:
    shape = _experiment(row, json.loads(row.labels_text), _shown(row.config_text), facts, owner, place)
    return {**shape, "notes": row.notes[:_NOTES_IN_LISTS], "trialIds": []}


def _whole(
    row: ExperimentRow, config: ShownConfig, facts: _Facts, owner: _Owner, place: _Place
) -> dict[str, Any]:
    shape = _experiment(row, row.labels, config, facts, owner, place)
    return {
        **shape,
        "duration": _duration(row, facts),
        "config": masked(row.config),
        "hyperparameters": row.config["hyperparameters"],
    }


def _duration(row: Any, facts: _Facts) -> int:
    # While an experiment is paused and nothing of it runs, its duration does not grow.
    end: datetime = row.end_time or facts.last_end or now()
    return int((end - row.start_time).total_seconds())


def _owner(user: UserRow) -> _Owner:
    return _Owner(user.id, user.username, user.display_name)


def _places(session: Session) -> dict[int, _Place]:
    """Return the place of each project, by its number."""
    query = select(ProjectRow, WorkspaceRow).join(WorkspaceRow, WorkspaceRow.id == ProjectRow.workspace_id)
    return {
        project.id: _Place(
            project.id,
            project.name,
            project.owner_id,
            workspace.id,
            workspace.name,
            project.is_archived or workspace.is_archived,
        )
        for project, workspace in session.execute(query)
    }


def _experiment(
    row: Any, labels: list[str], config: ShownConfig, facts: _Facts, owner: _Owner, place: _Place
) -> dict[str, Any]:
    """Return an `Experiment` without its duration and its config."""
    return {
        "id": row.id,
        "name": row.name,
        "description": row.description,
        "labels": labels,
        "notes": row.notes,
        "state": refined_state(row.state, facts.allocation_states, row.is_unmanaged),
        "archived": row.archived,
        "startTime": timestamp(row.start_time),
        "endTime": timestamp(row.end_time),
        "username": owner.username,
        "displayName": owner.display_name,
        "userId": owner.id,
        "numTrials": len(facts.trial_ids),
        "trialIds": list(facts.trial_ids),
        "jobId": row.job_id,
        "forkedFrom": row.parent_id,
        "progress": row.progress,
        "resourcePool": POOL,
        "workspaceId": place.workspace_id,
        "workspaceName": place.workspace,
        "projectId": place.project_id,
        "projectName": place.project,
        "projectOwnerId": place.owner_id,
        "parentArchived": place.is_archived,
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
    """Return facts about the experiments in `smaller`, whose values say whether a smaller metric is better."""
    facts: dict[int, _Facts] = defaultdict(_Facts)
    _add_trials(session, smaller, facts)
    states = (
        select(TrialRow.experiment_id, AllocationRow.state)
        .join(TrialRow, TrialRow.task_id == AllocationRow.task_id)
        .where(TrialRow.experiment_id.in_(smaller), AllocationRow.end_time.is_(None))
    )
    for experiment_id, state in session.execute(states):
        facts[experiment_id].allocation_states |= {state}
    ends = (
        select(TrialRow.experiment_id, func.max(AllocationRow.end_time))
        .join(TrialRow, TrialRow.task_id == AllocationRow.task_id)
        .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
        .where(TrialRow.experiment_id.in_(smaller), ExperimentRow.state == PAUSED)
        .group_by(TrialRow.experiment_id)
    )
    for experiment_id, end in session.execute(ends):
        if not facts[experiment_id].allocation_states:
            facts[experiment_id].last_end = end
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
    trial_ids: dict[int, list[int]] = defaultdict(list)
    # Not through the session, which takes as long again for each row.
    for experiment_id, trial_id, metric in session.connection().execute(query).all():
        trial_ids[experiment_id].append(trial_id)
        if metric is None:
            continue
        fact = facts[experiment_id]
        best = fact.best_metric
        if best is None or (metric < best if smaller[experiment_id] else metric > best):
            fact.best_trial_id, fact.best_metric = trial_id, metric
    for experiment_id, ids in trial_ids.items():
        facts[experiment_id].trial_ids = tuple(ids)
