"""The model registry: named models, each with numbered versions that are checkpoints."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from det_keras.master.database.models.base import Base, PlainText


class ModelRow(Base):
    """A named model."""

    __tablename__ = "models"
    # A number is never used again, even after a deletion.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - SQLAlchemy's own way

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(PlainText())
    # The name in lower case: two names that differ only in case would be mistaken for each other.
    folded_name: Mapped[str] = mapped_column(PlainText(), unique=True)
    description: Mapped[str] = mapped_column(PlainText(), default="")
    notes: Mapped[str] = mapped_column(PlainText(), default="")
    labels: Mapped[list[Any]] = mapped_column(default=list)
    meta: Mapped[dict[str, Any]] = mapped_column(default=dict)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id"))
    is_archived: Mapped[bool] = mapped_column(default=False)
    # Names that move from version to version, and the number of the version that has each.
    aliases: Mapped[dict[str, int]] = mapped_column(default=dict)
    # Versions so far, with those that were deleted: a number never names another checkpoint.
    last_version: Mapped[int] = mapped_column(default=0)
    creation_time: Mapped[datetime]
    last_updated_time: Mapped[datetime]


class ModelVersionRow(Base):
    """A checkpoint as a numbered version of a model."""

    __tablename__ = "model_versions"
    __table_args__ = (
        UniqueConstraint("model_id", "version", name="uq_model_versions_model_id_version"),
        # A call that is repeated because its answer was lost finds the version.
        UniqueConstraint("model_id", "checkpoint_uuid", name="uq_model_versions_model_id_checkpoint_uuid"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    version: Mapped[int]
    checkpoint_uuid: Mapped[str] = mapped_column(PlainText(36), ForeignKey("checkpoints.uuid"), index=True)
    name: Mapped[str] = mapped_column(PlainText(), default="")
    comment: Mapped[str] = mapped_column(PlainText(), default="")
    notes: Mapped[str] = mapped_column(PlainText(), default="")
    labels: Mapped[list[Any]] = mapped_column(default=list)
    meta: Mapped[dict[str, Any]] = mapped_column(default=dict)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    creation_time: Mapped[datetime]
    last_updated_time: Mapped[datetime]


class TrialSourceRow(Base):
    """What a trial said that it uses: a checkpoint, and if known the version of a model."""

    __tablename__ = "trial_sources"
    __table_args__ = (UniqueConstraint("trial_id", "checkpoint_uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    checkpoint_uuid: Mapped[str] = mapped_column(PlainText(36), ForeignKey("checkpoints.uuid"), index=True)
    # Such as ``INFERENCE``.
    kind: Mapped[str] = mapped_column(PlainText(32))
    model_id: Mapped[int | None]
    model_version: Mapped[int | None]
