"""Users, their logins, and what they saved; the master's own facts."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from det_keras.master.database.models.base import Base, PlainText


class SettingRow(Base):
    """One fact about the master itself."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(PlainText(64), primary_key=True)
    value: Mapped[str] = mapped_column(PlainText())


class UserRow(Base):
    """A user account."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    username: Mapped[str] = mapped_column(PlainText(255), unique=True)
    display_name: Mapped[str] = mapped_column(PlainText(), default="")
    # None: login with a password is not possible.
    password_hash: Mapped[str | None] = mapped_column(PlainText())
    admin: Mapped[bool] = mapped_column(default=False)
    active: Mapped[bool] = mapped_column(default=True)
    modified_at: Mapped[datetime]
    last_auth_at: Mapped[datetime | None]


class SavedViewRow(Base):
    """A page with its settings, under a name."""

    __tablename__ = "saved_views"
    __table_args__ = (UniqueConstraint("owner_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str] = mapped_column(PlainText())
    # On this master; it holds all settings of the page.
    address: Mapped[str] = mapped_column(PlainText())
    # Whether all users see it; only its owner changes it.
    is_shared: Mapped[bool]
    saved_at: Mapped[datetime]


class TokenRow(Base):
    """A token, by its hash; an allocation's token expires when the allocation ends."""

    __tablename__ = "tokens"

    hash: Mapped[str] = mapped_column(PlainText(64), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    is_task: Mapped[bool]
    allocation_id: Mapped[str | None] = mapped_column(PlainText(255), index=True)
    expires_at: Mapped[datetime | None]


class AccessTokenRow(Base):
    """A login for programs, by the hash of its token."""

    __tablename__ = "access_tokens"
    # Whoever revokes a token by its number must not meet a later one.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - SQLAlchemy's own way

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    hash: Mapped[str] = mapped_column(PlainText(64), unique=True)
    description: Mapped[str] = mapped_column(PlainText(), default="")
    made_at: Mapped[datetime]
    # None: until it is revoked.
    expires_at: Mapped[datetime | None]
    is_revoked: Mapped[bool] = mapped_column(default=False)


class AuditRow(Base):
    """Something that a call changed; rows are only added, and deleted by their age."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_kind_object_id", "kind", "object_id"),
        Index("ix_audit_of_kind_of_id", "of_kind", "of_id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    made_at: Mapped[datetime] = mapped_column(index=True)
    # None: nobody was logged in. The name is that of then.
    user_id: Mapped[int | None] = mapped_column(index=True)
    username: Mapped[str] = mapped_column(PlainText(), default="")
    # The access token, or the task that acted for its user; None for a login.
    token_id: Mapped[int | None]
    allocation_id: Mapped[str | None] = mapped_column(PlainText())
    address: Mapped[str] = mapped_column(PlainText(), default="")
    verb: Mapped[str] = mapped_column(PlainText())
    # The thing; its id is empty if it has none. Things are deleted, so nothing refers to their rows.
    kind: Mapped[str] = mapped_column(PlainText())
    object_id: Mapped[str] = mapped_column(PlainText())
    # Whose it is; None for nobody's.
    owner_id: Mapped[int | None] = mapped_column(index=True)
    # The thing to which it belongs; empty for none.
    of_kind: Mapped[str] = mapped_column(PlainText(), default="")
    of_id: Mapped[str] = mapped_column(PlainText(), default="")
    detail: Mapped[str] = mapped_column(PlainText(), default="")


class SharedLinkRow(Base):
    """A link to the report of an experiment that needs no login, by the hash of its token."""

    __tablename__ = "shared_links"
    # Whoever revokes a link by its number must not meet a later one.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - SQLAlchemy's own way

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id"), index=True)
    maker_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    hash: Mapped[str] = mapped_column(PlainText(64), unique=True)
    made_at: Mapped[datetime]
    # None: until it is revoked.
    expires_at: Mapped[datetime | None]


class UserSettingRow(Base):
    """A setting that a client keeps for its user; the master does not read its value."""

    __tablename__ = "user_settings"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    # Where in the client it belongs; empty for everywhere.
    path: Mapped[str] = mapped_column(PlainText(), primary_key=True)
    key: Mapped[str] = mapped_column(PlainText(), primary_key=True)
    value: Mapped[str] = mapped_column(PlainText())
