"""What the users of a master share: workspaces, and projects with their experiments."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from det_keras.master.database.models.base import Base, PlainText


class WorkspaceRow(Base):
    """A named collection of projects."""

    __tablename__ = "workspaces"
    # A number is never used again, even after a deletion.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - SQLAlchemy's own way

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(PlainText(), unique=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    is_archived: Mapped[bool] = mapped_column(default=False)
    # Its projects are being deleted.
    is_deleting: Mapped[bool] = mapped_column(default=False)
    # The `checkpoint_storage` of its experiments' configs, below their own; None for the master's default.
    checkpoint_storage: Mapped[dict[str, Any] | None]


class ProjectRow(Base):
    """A named collection of experiments."""

    __tablename__ = "projects"
    __table_args__ = (UniqueConstraint("workspace_id", "name"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True)
    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id"))
    name: Mapped[str] = mapped_column(PlainText())
    # Short and unique on the master.
    key: Mapped[str] = mapped_column(PlainText(), unique=True)
    description: Mapped[str] = mapped_column(PlainText(), default="")
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    # Objects with `name` and `contents`.
    notes: Mapped[list[Any]] = mapped_column(default=list)
    is_archived: Mapped[bool] = mapped_column(default=False)
    # Its experiments are being deleted.
    is_deleting: Mapped[bool] = mapped_column(default=False)


class PinRow(Base):
    """A workspace that a user has pinned."""

    __tablename__ = "workspace_pins"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id"), primary_key=True)
    pinned_at: Mapped[datetime]


class TemplateRow(Base):
    """A part of configs, under a name."""

    __tablename__ = "templates"

    name: Mapped[str] = mapped_column(PlainText(), primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id"))
    # With its secrets, as configs get it. Views mask them.
    config: Mapped[dict[str, Any]]


class WebhookRow(Base):
    """An address to which events are sent."""

    __tablename__ = "webhooks"
    # Configs name webhooks by number, and must not meet a later one.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - SQLAlchemy's own way

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(PlainText(), default="")
    # It may hold a secret of the receiver, so only those who may change it see more than the host.
    url: Mapped[str] = mapped_column(PlainText())
    # DEFAULT or SLACK.
    format: Mapped[str] = mapped_column(PlainText(16))
    # WORKSPACE or SPECIFIC.
    mode: Mapped[str] = mapped_column(PlainText(16))
    # None: for all workspaces.
    workspace_id: Mapped[int | None] = mapped_column(ForeignKey("workspaces.id"), index=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    # Objects with `id`, `type` and `condition`.
    triggers: Mapped[list[Any]]


class DeliveryRow(Base):
    """An event for a webhook: it is sent until the receiver accepts it, or it was tried often enough."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        UniqueConstraint("webhook_id", "reason"),
        # Few of many are waiting.
        Index("ix_webhook_deliveries_state_due_at", "state", "due_at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    webhook_id: Mapped[int] = mapped_column(ForeignKey("webhooks.id"))
    # By which the receiver recognises a repetition.
    event_id: Mapped[str] = mapped_column(PlainText(36))
    # Of one reason there is one event, such as of a task whose log matches a trigger again and again.
    reason: Mapped[str] = mapped_column(PlainText())
    # What happened, such as ``experiment 7 COMPLETED``.
    about: Mapped[str] = mapped_column(PlainText())
    payload: Mapped[str] = mapped_column(PlainText())
    # WAITING, DELIVERED or FAILED.
    state: Mapped[str] = mapped_column(PlainText(16))
    attempts: Mapped[int] = mapped_column(default=0)
    most_attempts: Mapped[int]
    made_at: Mapped[datetime]
    due_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    # The status and the text of the last answer, or why there was none.
    status: Mapped[int | None]
    answer: Mapped[str] = mapped_column(PlainText(), default="")
