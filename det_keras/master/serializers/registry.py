"""Models of the registry and their versions as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from det_keras.master.database.models import CheckpointRow, ModelRow, ModelVersionRow
from det_keras.master.serializers.checkpoints import checkpoint_shapes
from det_keras.master.serializers.teams import usernames
from det_keras.protocol.values import timestamp


def model_shapes(session: Session, rows: Sequence[ModelRow]) -> list[dict[str, Any]]:
    """Return `Model`s, with the version of each alias."""
    users = usernames(session)
    numbers = [row.id for row in rows]
    counted = (
        select(ModelVersionRow.model_id, func.count())
        .where(ModelVersionRow.model_id.in_(numbers))
        .group_by(ModelVersionRow.model_id)
    )
    counts = {number: int(count) for number, count in session.execute(counted)}
    return [
        {
            "id": row.id,
            "name": row.name,
            **_described(row),
            "description": row.description,
            "archived": row.is_archived,
            "numVersions": counts.get(row.id, 0),
            "aliases": row.aliases,
            "workspaceId": row.workspace_id,
            "userId": row.owner_id,
            "username": users[row.owner_id],
        }
        for row in rows
    ]


def version_shapes(
    session: Session, model: ModelRow, rows: Sequence[ModelVersionRow]
) -> list[dict[str, Any]]:
    """Return `ModelVersion`s of one model, with their checkpoints."""
    users = usernames(session)
    (of_model,) = model_shapes(session, [model])
    uuids = [row.checkpoint_uuid for row in rows]
    found = session.scalars(select(CheckpointRow).where(CheckpointRow.uuid.in_(uuids))).all()
    checkpoints = {shape["uuid"]: shape for shape in checkpoint_shapes(session, found)}
    return [
        {
            "id": row.id,
            "model": of_model,
            "version": row.version,
            "checkpoint": checkpoints[row.checkpoint_uuid],
            "name": row.name,
            "comment": row.comment,
            **_described(row),
            "aliases": [name for name, number in model.aliases.items() if number == row.version],
            "userId": row.user_id,
            "username": users[row.user_id],
        }
        for row in rows
    ]


def _described(row: ModelRow | ModelVersionRow) -> dict[str, Any]:
    return {
        "notes": row.notes,
        "labels": row.labels,
        "metadata": row.meta,
        "creationTime": timestamp(row.creation_time),
        "lastUpdatedTime": timestamp(row.last_updated_time),
    }
