"""The tables of the master's database.

All state that must survive a restart is stored here. Derived facts, such as whether a trial waits for slots,
are not. Times are UTC. A migration accompanies every change of this file (`migrations/`).
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import DateTime, Float, ForeignKey, Index, MetaData, String, Text, false
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import BigInteger, Integer, TypeDecorator

from det_keras.master.wire import encode_json

__all__ = [
    "AllocationRow",
    "Base",
    "CheckpointRow",
    "ExperimentRow",
    "Json",
    "LogRow",
    "MetricRow",
    "SettingRow",
    "StorageRow",
    "TaskRow",
    "TokenRow",
    "TrialRow",
    "UserRow",
    "UtcTime",
]


class Json(TypeDecorator[Any]):
    """A plain value as JSON text; NaN and infinities are stored as their names."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Write."""
        return None if value is None else encode_json(value).decode()

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Read."""
        return None if value is None else json.loads(value)


class UtcTime(TypeDecorator[datetime]):
    """A time with its zone. SQLite stores no zone: times are stored in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Write."""
        if value is None:
            return None
        time = value.astimezone(timezone.utc)
        return time.replace(tzinfo=None) if dialect.name == "sqlite" else time

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Read."""
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=timezone.utc)


class Base(DeclarativeBase):
    """The root of all tables."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own way to map types
        datetime: UtcTime,
        dict[str, Any]: Json,
        list[Any]: Json,
        dict[str, int]: Json,
    }


# SQLite numbers rows by itself only in a column of type INTEGER.
_BigId = BigInteger().with_variant(Integer(), "sqlite")


class SettingRow(Base):
    """One fact about the master itself."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class UserRow(Base):
    """A user account."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    username: Mapped[str] = mapped_column(String(255), unique=True)
    display_name: Mapped[str] = mapped_column(Text, default="")
    # None: login with a password is not possible.
    password_hash: Mapped[str | None] = mapped_column(Text)
    admin: Mapped[bool] = mapped_column(default=False)
    active: Mapped[bool] = mapped_column(default=True)
    modified_at: Mapped[datetime]
    last_auth_at: Mapped[datetime | None]


class TokenRow(Base):
    """A token, by its hash; an allocation's token expires when the allocation ends."""

    __tablename__ = "tokens"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    is_task: Mapped[bool]
    allocation_id: Mapped[str | None] = mapped_column(String(255), index=True)
    expires_at: Mapped[datetime | None]


class ExperimentRow(Base):
    """One config and its search."""

    __tablename__ = "experiments"
    # A number is never used again, even after a deletion.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - SQLAlchemy's own way

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(32), index=True)
    archived: Mapped[bool] = mapped_column(default=False)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    job_id: Mapped[str] = mapped_column(String(36), index=True)
    parent_id: Mapped[int | None]
    name: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text, default="")
    labels: Mapped[list[Any]]
    notes: Mapped[str] = mapped_column(Text, default="")
    # With its secrets, as the trial gets it. Views mask them.
    config: Mapped[dict[str, Any]]
    # Its secrets are masked already.
    original_config: Mapped[str] = mapped_column(Text)
    # The stored code, by the hash of its bytes.
    context: Mapped[str | None] = mapped_column(String(64), index=True)
    context_size: Mapped[int] = mapped_column(BigInteger, default=0)
    searcher: Mapped[dict[str, Any]]
    progress: Mapped[float] = mapped_column(default=0.0)
    warm_start_uuid: Mapped[str | None] = mapped_column(String(36))
    # Its users start its trials themselves, on any machine; the trials report to this master.
    is_unmanaged: Mapped[bool] = mapped_column(default=False, server_default=false())
    # The name by which a script finds its unmanaged experiment again.
    external_id: Mapped[str | None] = mapped_column(String(255), unique=True, index=True)
    # The experiment has ended and its checkpoints are still to be pruned.
    is_pruning_due: Mapped[bool] = mapped_column(default=False)
    start_time: Mapped[datetime]
    end_time: Mapped[datetime | None]


class TaskRow(Base):
    """A task that runs on slots: a trial or a generic job."""

    __tablename__ = "tasks"

    id: Mapped[str] = mapped_column(String(255), primary_key=True)
    kind: Mapped[str] = mapped_column(String(32), index=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    job_id: Mapped[str] = mapped_column(String(36))
    description: Mapped[str] = mapped_column(Text, default="")
    # For jobs only; trials use their experiment's config.
    config: Mapped[dict[str, Any] | None]
    context: Mapped[str | None] = mapped_column(String(64), index=True)
    slots: Mapped[int]
    exit_status: Mapped[str | None] = mapped_column(Text)
    start_time: Mapped[datetime]
    end_time: Mapped[datetime | None]


class TrialRow(Base):
    """One training run with one set of hyperparameters; it may restart."""

    __tablename__ = "trials"
    __table_args__ = (
        Index("ix_trials_external_id", "experiment_id", "external_id", unique=True),
        # A number is never used again, even after a deletion.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id"), index=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), unique=True)
    # The tasks of the trial before it was continued, oldest first.
    earlier_task_ids: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    # The name by which a script finds its unmanaged trial again.
    external_id: Mapped[str | None] = mapped_column(String(255))
    # The time of an unmanaged trial's last report; None after it has reported its end.
    heartbeat_at: Mapped[datetime | None]
    request_id: Mapped[str] = mapped_column(String(36))
    state: Mapped[str] = mapped_column(String(32), index=True)
    hparams: Mapped[dict[str, Any]]
    seed: Mapped[int] = mapped_column(BigInteger)
    run_id: Mapped[int] = mapped_column(default=0)
    restarts: Mapped[int] = mapped_column(default=0)
    # Runs in a row that ended without an exit code.
    lost_runs: Mapped[int] = mapped_column(default=0)
    early_exit: Mapped[str | None] = mapped_column(String(32))
    # False while the trial has reached its length and waits for a longer one from the search.
    has_work: Mapped[bool] = mapped_column(default=True)
    # The search will give it no further length.
    is_closed: Mapped[bool] = mapped_column(default=False)
    # A log policy made the next failure final.
    is_retry_cancelled: Mapped[bool] = mapped_column(default=False)
    log_policy_matched: Mapped[str | None] = mapped_column(Text)
    runner_state: Mapped[str] = mapped_column(Text, default="")
    run_metadata: Mapped[dict[str, Any] | None]
    progress: Mapped[float] = mapped_column(default=0.0)
    total_batches: Mapped[int] = mapped_column(BigInteger, default=0)
    best_validation_id: Mapped[int | None]
    latest_validation_id: Mapped[int | None]
    searcher_metric_value: Mapped[float | None] = mapped_column(Float)
    summary_metrics: Mapped[dict[str, Any]]
    warm_start_uuid: Mapped[str | None] = mapped_column(String(36))
    start_time: Mapped[datetime]
    end_time: Mapped[datetime | None]


class AllocationRow(Base):
    """One attempt to run a task on slots."""

    __tablename__ = "allocations"

    id: Mapped[str] = mapped_column(String(255), primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), index=True)
    run_id: Mapped[int]
    state: Mapped[str] = mapped_column(String(32), index=True)
    resources_id: Mapped[str] = mapped_column(String(36))
    slot_ids: Mapped[list[Any]]
    # The master's address that the task was given; it cannot be changed while the task runs.
    master_url: Mapped[str] = mapped_column(Text)
    is_preempted: Mapped[bool] = mapped_column(default=False)
    is_acknowledged: Mapped[bool] = mapped_column(default=False)
    is_killed: Mapped[bool] = mapped_column(default=False)
    # For a service: whether it accepts requests, and its address.
    is_ready: Mapped[bool] = mapped_column(default=False, server_default=false())
    proxy_address: Mapped[str | None] = mapped_column(Text)
    # The time at which it is killed if it has not ended.
    kill_at: Mapped[datetime | None]
    # The lines of its log file are stored up to this byte.
    log_offset: Mapped[int] = mapped_column(BigInteger, default=0)
    exit_code: Mapped[int | None]
    exit_reason: Mapped[str] = mapped_column(Text, default="")
    start_time: Mapped[datetime]
    end_time: Mapped[datetime | None]


class MetricRow(Base):
    """One report of metrics."""

    __tablename__ = "metrics"
    __table_args__ = (
        Index("ix_metrics_trial_id_group", "trial_id", "group", "total_batches"),
        Index("ix_metrics_searcher_metric", "trial_id", "searcher_metric"),
    )

    id: Mapped[int] = mapped_column(_BigId, primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    run_id: Mapped[int]
    group: Mapped[str] = mapped_column(String(255))
    # training, validation, generic or profiler: reports of one partition are rolled back together.
    partition: Mapped[str] = mapped_column(String(16))
    total_batches: Mapped[int | None] = mapped_column(BigInteger)
    archived: Mapped[bool] = mapped_column(default=False)
    metrics: Mapped[dict[str, Any]]
    batch_metrics: Mapped[list[Any] | None]
    searcher_metric: Mapped[float | None] = mapped_column(Float)
    end_time: Mapped[datetime]


class StorageRow(Base):
    """A storage that checkpoints were written to."""

    __tablename__ = "storages"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    config: Mapped[dict[str, Any]]


class CheckpointRow(Base):
    """The record of a checkpoint; it outlives the files."""

    __tablename__ = "checkpoints"

    uuid: Mapped[str] = mapped_column(String(36), primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), index=True)
    task_id: Mapped[str] = mapped_column(String(255))
    allocation_id: Mapped[str] = mapped_column(String(255))
    storage_id: Mapped[int | None] = mapped_column(ForeignKey("storages.id"))
    state: Mapped[str] = mapped_column(String(32))
    steps_completed: Mapped[int] = mapped_column(BigInteger)
    size: Mapped[int] = mapped_column(BigInteger)
    resources: Mapped[dict[str, int]]
    meta: Mapped[dict[str, Any]]
    # Globs of files that are still to be deleted; [] to list the files again; None if nothing is to be done.
    pending_deletion: Mapped[list[Any] | None]
    report_time: Mapped[datetime]


class LogRow(Base):
    """One line of a task's log."""

    __tablename__ = "task_logs"
    __table_args__ = (Index("ix_task_logs_task_id_id", "task_id", "id"),)

    id: Mapped[int] = mapped_column(_BigId, primary_key=True)
    task_id: Mapped[str] = mapped_column(String(255))
    allocation_id: Mapped[str | None] = mapped_column(String(255))
    time: Mapped[datetime]
    level: Mapped[str | None] = mapped_column(String(16))
    stdtype: Mapped[str | None] = mapped_column(String(16))
    source: Mapped[str | None] = mapped_column(String(64))
    agent_id: Mapped[str | None] = mapped_column(String(64))
    container_id: Mapped[str | None] = mapped_column(String(64))
    rank: Mapped[int | None]
    text: Mapped[str] = mapped_column(Text)
