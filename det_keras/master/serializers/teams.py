"""Workspaces and projects as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from det_keras.config.secrets import masked
from det_keras.master.database.models import (
    ExperimentRow,
    PinRow,
    ProjectRow,
    TrialRow,
    UserRow,
    WorkspaceRow,
)
from det_keras.master.teams.workspaces import FIRST
from det_keras.protocol import states
from det_keras.protocol.values import timestamp


class _Counts(NamedTuple):
    """What a project has."""

    experiments: int = 0
    active: int = 0
    failed_deletions: int = 0
    last_start: Any = None


def workspace_shapes(session: Session, rows: Sequence[WorkspaceRow], user_id: int) -> list[dict[str, Any]]:
    """Return `Workspace`s as a user sees them: pinned or not."""
    users = usernames(session)
    pins: dict[int, Any] = {
        row.workspace_id: row.pinned_at
        for row in session.scalars(select(PinRow).where(PinRow.user_id == user_id))
    }
    in_workspaces = ProjectRow.workspace_id.in_([row.id for row in rows])
    found = session.execute(select(ProjectRow.id, ProjectRow.workspace_id).where(in_workspaces)).all()
    counts = _counts(session, [number for number, _ in found])
    of_each: dict[int, list[_Counts]] = defaultdict(list)
    for number, workspace_id in found:
        of_each[workspace_id].append(counts.get(number, _Counts()))
    return [_workspace(row, users[row.owner_id], pins, of_each[row.id]) for row in rows]


def project_shapes(session: Session, rows: Sequence[ProjectRow]) -> list[dict[str, Any]]:
    """Return `Project`s."""
    users, counts = usernames(session), _counts(session, [row.id for row in rows])
    workspaces = {row.id: row for row in session.scalars(select(WorkspaceRow))}
    counted = (
        select(ExperimentRow.project_id, func.count())
        .join(TrialRow, TrialRow.experiment_id == ExperimentRow.id)
        .where(ExperimentRow.project_id.in_([row.id for row in rows]))
        .group_by(ExperimentRow.project_id)
    )
    runs = {number: int(count) for number, count in session.execute(counted)}
    return [
        _project(
            row,
            workspaces[row.workspace_id],
            users[row.owner_id],
            counts.get(row.id, _Counts()),
            runs.get(row.id, 0),
        )
        for row in rows
    ]


def usernames(session: Session) -> dict[int, str]:
    """Return the names of all users by their numbers."""
    return {user.id: user.username for user in session.execute(select(UserRow.id, UserRow.username))}


def _workspace(
    row: WorkspaceRow, username: str, pins: dict[int, Any], counts: Sequence[_Counts]
) -> dict[str, Any]:
    stored = row.checkpoint_storage
    return {
        "id": row.id,
        "name": row.name,
        "archived": row.is_archived,
        "username": username,
        "userId": row.owner_id,
        "numProjects": len(counts),
        "numExperiments": sum(one.experiments for one in counts),
        "pinned": row.id in pins,
        "pinnedAt": timestamp(pins.get(row.id)),
        "immutable": row.id == FIRST,
        "checkpointStorageConfig": stored and masked({"checkpoint_storage": stored})["checkpoint_storage"],
        **_deletion(is_deleting=row.is_deleting, failed=sum(one.failed_deletions for one in counts)),
    }


def _project(
    row: ProjectRow, workspace: WorkspaceRow, username: str, counts: _Counts, runs: int
) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "key": row.key,
        "description": row.description,
        "notes": row.notes,
        "archived": row.is_archived or workspace.is_archived,
        "workspaceId": workspace.id,
        "workspaceName": workspace.name,
        "username": username,
        "userId": row.owner_id,
        "numExperiments": counts.experiments,
        "numActiveExperiments": counts.active,
        "numRuns": runs,
        "lastExperimentStartedAt": timestamp(counts.last_start),
        "immutable": row.id == FIRST,
        **_deletion(is_deleting=row.is_deleting, failed=counts.failed_deletions),
    }


def _deletion(*, is_deleting: bool, failed: int) -> dict[str, str]:
    if not is_deleting:
        return {"state": "WORKSPACE_STATE_UNSPECIFIED", "errorMessage": ""}
    if not failed:
        return {"state": "WORKSPACE_STATE_DELETING", "errorMessage": ""}
    message = f"{failed} experiments could not be deleted: the master's log says why."
    return {"state": "WORKSPACE_STATE_DELETE_FAILED", "errorMessage": message}


def _counts(session: Session, project_ids: Sequence[int]) -> dict[int, _Counts]:
    active = func.sum(case((ExperimentRow.state == states.ACTIVE, 1), else_=0))
    failed = func.sum(case((ExperimentRow.state == states.DELETE_FAILED, 1), else_=0))
    query = (
        select(ExperimentRow.project_id, func.count(), active, failed, func.max(ExperimentRow.start_time))
        .where(ExperimentRow.project_id.in_(project_ids))
        .group_by(ExperimentRow.project_id)
    )
    return {
        number: _Counts(count, int(is_active), int(has_failed), last)
        for number, count, is_active, has_failed, last in session.execute(query)
    }
