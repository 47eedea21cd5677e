"""The tables of the master's database.

All state that must survive a restart is stored here. Derived facts, such as whether a trial waits for slots,
are not. Times are UTC. A migration accompanies every change of this file (`migrations/`).
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import DateTime, Float, ForeignKey, Index, MetaData, String, Text, UniqueConstraint, false
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import BigInteger, Integer, TypeDecorator, TypeEngine

from det_keras.master.wire import encode_json


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


class PlainText(TypeDecorator[str]):
    """Text of any characters and, on PostgreSQL, of any length.

    PostgreSQL refuses the character NUL, which programs do print. There it is stored as two other characters.

    Args:
        length: what the schema of SQLite says, which does not limit texts either; None for none.
    """

    impl = Text
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of a dialect."""
        return Text() if dialect.name == "postgresql" or self.length is None else String(self.length)

    def bind_processor(self, dialect: Dialect) -> Any:
        """Write."""
        return _without_nul if dialect.name == "postgresql" else None

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Read."""
        return _with_nul if dialect.name == "postgresql" else None


# A code point that Unicode reserves for internal use, and which of the two characters it stands for.
_MARK = "\ufdd0"


def _without_nul(text: str | None) -> str | None:
    if text is None or ("\0" not in text and _MARK not in text):
        return text
    return text.replace(_MARK, f"{_MARK}1").replace("\0", f"{_MARK}0")


def _with_nul(text: str | None) -> str | None:
    if text is None or _MARK not in text:
        return text
    return text.replace(f"{_MARK}0", "\0").replace(f"{_MARK}1", _MARK)


# Programs send numbers of 64 bits. SQLite stores them in every column, and numbers rows only in one of type INTEGER.
_Integer = BigInteger().with_variant(Integer(), "sqlite")


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
        if value is None:
            return value
        # PostgreSQL returns times in the zone of the session.
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


class utc_text(FunctionElement[str]):  # noqa: N801 - it is written like a function of SQL
    """A time as text such as ``2026-01-02 03:04:05.678901``, in UTC: a long list of times costs no objects."""

    type = Text()
    inherit_cache = True


@compiles(utc_text, "sqlite")
def _stored_text(element: utc_text, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(utc_text, "postgresql")
def _formatted_text(element: utc_text, compiler: SQLCompiler, **options: Any) -> str:
    # Connections have the time zone UTC.
    return f"to_char({compiler.process(element.clauses, **options)}, 'YYYY-MM-DD HH24:MI:SS.US')"


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
        int: _Integer,
        str: PlainText,
        dict[str, int]: Json,
    }


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


class ExperimentRow(Base):
    """One config and its search."""

    __tablename__ = "experiments"
    # A number is never used again, even after a deletion.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - SQLAlchemy's own way

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(PlainText(32), index=True)
    archived: Mapped[bool] = mapped_column(default=False)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    job_id: Mapped[str] = mapped_column(PlainText(36), index=True)
    parent_id: Mapped[int | None]
    name: Mapped[str] = mapped_column(PlainText())
    description: Mapped[str] = mapped_column(PlainText(), default="")
    labels: Mapped[list[Any]]
    notes: Mapped[str] = mapped_column(PlainText(), default="")
    # With its secrets, as the trial gets it. Views mask them.
    config: Mapped[dict[str, Any]]
    # Its secrets are masked already.
    original_config: Mapped[str] = mapped_column(PlainText())
    # The stored code, by the hash of its bytes.
    context: Mapped[str | None] = mapped_column(PlainText(64), index=True)
    context_size: Mapped[int] = mapped_column(BigInteger, default=0)
    # Empty: a search has a row of its own (`SearchRow`).
    searcher: Mapped[dict[str, Any]] = mapped_column(default=dict)
    progress: Mapped[float] = mapped_column(default=0.0)
    warm_start_uuid: Mapped[str | None] = mapped_column(PlainText(36))
    # Its users start its trials themselves, on any machine; the trials report to this master.
    is_unmanaged: Mapped[bool] = mapped_column(default=False, server_default=false())
    # The name by which a script finds its unmanaged experiment again.
    external_id: Mapped[str | None] = mapped_column(PlainText(255), unique=True, index=True)
    # The experiment has ended and its checkpoints are still to be pruned.
    is_pruning_due: Mapped[bool] = mapped_column(default=False)
    # Its place in the queue, comparable with times in microseconds; None if it was never moved.
    queue_position: Mapped[int | None] = mapped_column(BigInteger)
    start_time: Mapped[datetime]
    end_time: Mapped[datetime | None]


class SearchRow(Base):
    """The state of an experiment's search, which is long if it has many trials."""

    __tablename__ = "searches"

    experiment_id: Mapped[int] = mapped_column(
        ForeignKey("experiments.id"), primary_key=True, autoincrement=False
    )
    # The last event that the state includes.
    number: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(PlainText())


class SearchEventRow(Base):
    """An event of a search after its stored state."""

    __tablename__ = "search_events"

    experiment_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("experiments.id"), primary_key=True, autoincrement=False
    )
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    # A method of the `Searcher` and its arguments, as JSON.
    event: Mapped[str] = mapped_column(PlainText())


class TaskRow(Base):
    """A task that runs on slots: a trial or a generic job."""

    __tablename__ = "tasks"

    id: Mapped[str] = mapped_column(PlainText(255), primary_key=True)
    kind: Mapped[str] = mapped_column(PlainText(32), index=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    job_id: Mapped[str] = mapped_column(PlainText(36), index=True)
    description: Mapped[str] = mapped_column(PlainText(), default="")
    # For jobs only; trials use their experiment's config.
    config: Mapped[dict[str, Any] | None]
    context: Mapped[str | None] = mapped_column(PlainText(64), index=True)
    slots: Mapped[int]
    # For jobs only, as that of an experiment.
    queue_position: Mapped[int | None] = mapped_column(BigInteger)
    exit_status: Mapped[str | None] = mapped_column(PlainText())
    start_time: Mapped[datetime]
    end_time: Mapped[datetime | None]


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


class TrialRow(Base):
    """One training run with one set of hyperparameters; it may restart."""

    __tablename__ = "trials"
    __table_args__ = (
        Index("ix_trials_external_id", "experiment_id", "external_id", unique=True),
        # Of a wide search, few trials are in a state that is looked for, and one has an id.
        Index("ix_trials_experiment_id_state", "experiment_id", "state"),
        Index("ix_trials_experiment_id_request_id", "experiment_id", "request_id"),
        # A number is never used again, even after a deletion.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id"), index=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), unique=True)
    # The tasks of the trial before it was continued, oldest first.
    earlier_task_ids: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    # The name by which a script finds its unmanaged trial again.
    external_id: Mapped[str | None] = mapped_column(PlainText(255))
    # The time of an unmanaged trial's last report; None after it has reported its end.
    heartbeat_at: Mapped[datetime | None]
    request_id: Mapped[str] = mapped_column(PlainText(36))
    state: Mapped[str] = mapped_column(PlainText(32), index=True)
    hparams: Mapped[dict[str, Any]]
    seed: Mapped[int] = mapped_column(BigInteger)
    run_id: Mapped[int] = mapped_column(default=0)
    restarts: Mapped[int] = mapped_column(default=0)
    # Runs in a row that ended without an exit code.
    lost_runs: Mapped[int] = mapped_column(default=0)
    early_exit: Mapped[str | None] = mapped_column(PlainText(32))
    # False while the trial has reached its length and waits for a longer one from the search.
    has_work: Mapped[bool] = mapped_column(default=True)
    # The search will give it no further length.
    is_closed: Mapped[bool] = mapped_column(default=False)
    # A log policy made the next failure final.
    is_retry_cancelled: Mapped[bool] = mapped_column(default=False)
    log_policy_matched: Mapped[str | None] = mapped_column(PlainText())
    runner_state: Mapped[str] = mapped_column(PlainText(), default="")
    run_metadata: Mapped[dict[str, Any] | None]
    progress: Mapped[float] = mapped_column(default=0.0)
    total_batches: Mapped[int] = mapped_column(BigInteger, default=0)
    best_validation_id: Mapped[int | None]
    latest_validation_id: Mapped[int | None]
    searcher_metric_value: Mapped[float | None] = mapped_column(Float)
    summary_metrics: Mapped[dict[str, Any]]
    warm_start_uuid: Mapped[str | None] = mapped_column(PlainText(36))
    start_time: Mapped[datetime]
    end_time: Mapped[datetime | None]

    @property
    def task_ids(self) -> list[str]:
        """All tasks of the trial, oldest first."""
        return [*self.earlier_task_ids, self.task_id]


class AllocationRow(Base):
    """One attempt to run a task on slots."""

    __tablename__ = "allocations"
    # Few of many allocations are live.
    __table_args__ = (Index("ix_allocations_end_time", "end_time"),)

    id: Mapped[str] = mapped_column(PlainText(255), primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), index=True)
    run_id: Mapped[int]
    state: Mapped[str] = mapped_column(PlainText(32), index=True)
    resources_id: Mapped[str] = mapped_column(PlainText(36))
    # The slots that it occupies, by node: plain `Share`s.
    shares: Mapped[list[Any]]
    # The master's address that the task was given; it cannot be changed while the task runs.
    master_url: Mapped[str] = mapped_column(PlainText())
    is_preempted: Mapped[bool] = mapped_column(default=False)
    is_acknowledged: Mapped[bool] = mapped_column(default=False)
    is_killed: Mapped[bool] = mapped_column(default=False)
    # For a service: whether it accepts requests, and its address.
    is_ready: Mapped[bool] = mapped_column(default=False, server_default=false())
    proxy_address: Mapped[str | None] = mapped_column(PlainText())
    # The time at which it is killed if it has not ended.
    kill_at: Mapped[datetime | None]
    # The log of each of its nodes is stored up to this byte; the node's place in `shares` is the key.
    log_offsets: Mapped[dict[str, int]]
    exit_code: Mapped[int | None]
    exit_reason: Mapped[str] = mapped_column(PlainText(), default="")
    start_time: Mapped[datetime]
    end_time: Mapped[datetime | None]

    @property
    def slots(self) -> int:
        """Number of slots that it occupies."""
        return sum(len(share["slot_ids"]) for share in self.shares)


class MetricRow(Base):
    """One report of metrics."""

    __tablename__ = "metrics"
    __table_args__ = (
        Index("ix_metrics_trial_id_group", "trial_id", "group", "total_batches"),
        Index("ix_metrics_searcher_metric", "trial_id", "searcher_metric"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    run_id: Mapped[int]
    group: Mapped[str] = mapped_column(PlainText(255))
    # training, validation, generic or profiler: reports of one partition are rolled back together.
    partition: Mapped[str] = mapped_column(PlainText(16))
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
    fingerprint: Mapped[str] = mapped_column(PlainText(64), unique=True)
    config: Mapped[dict[str, Any]]


class CheckpointRow(Base):
    """The record of a checkpoint; it outlives the files."""

    __tablename__ = "checkpoints"

    uuid: Mapped[str] = mapped_column(PlainText(36), primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), index=True)
    task_id: Mapped[str] = mapped_column(PlainText(255))
    allocation_id: Mapped[str] = mapped_column(PlainText(255))
    storage_id: Mapped[int | None] = mapped_column(ForeignKey("storages.id"))
    state: Mapped[str] = mapped_column(PlainText(32))
    steps_completed: Mapped[int] = mapped_column(BigInteger)
    size: Mapped[int] = mapped_column(BigInteger)
    resources: Mapped[dict[str, int]]
    meta: Mapped[dict[str, Any]]
    # Globs of files that are still to be deleted; [] to list the files again; None if nothing is to be done.
    pending_deletion: Mapped[list[Any] | None]
    report_time: Mapped[datetime]


class VerificationRow(Base):
    """The comparison of an experiment's first trial with a copy that resumes from its first checkpoint."""

    __tablename__ = "verifications"

    experiment_id: Mapped[int] = mapped_column(
        ForeignKey("experiments.id"), primary_key=True, autoincrement=False
    )
    trial_id: Mapped[int]
    # A state of `det_keras.master.checkpoints.verification`.
    state: Mapped[str] = mapped_column(PlainText(32), index=True)
    # The experiment's code: files that were verified once need not be verified again.
    context: Mapped[str | None] = mapped_column(PlainText(64), index=True)
    # The checkpoints from which the copy resumes: the ends of earlier trainings, and the first one of the two.
    checkpoints: Mapped[list[Any]]
    expected: Mapped[str] = mapped_column(PlainText(36))
    first_batch: Mapped[int] = mapped_column(BigInteger)
    second_batch: Mapped[int] = mapped_column(BigInteger)
    # Number of copies that were started, and the slots of the one that runs: plain `Share`s.
    attempts: Mapped[int] = mapped_column(default=0)
    shares: Mapped[list[Any]] = mapped_column(default=list)
    differences: Mapped[list[Any]] = mapped_column(default=list)
    # Why nothing was compared.
    reason: Mapped[str] = mapped_column(PlainText(), default="")


class MediaRow(Base):
    """The record of an item of media, whose file is in a storage."""

    __tablename__ = "media"
    __table_args__ = (Index("ix_media_trial_id", "trial_id", "kind", "name", "step", unique=True),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    # The storage of the file; None for that of the experiment's config.
    storage_id: Mapped[int | None] = mapped_column(ForeignKey("storages.id"))
    # A key of `det_keras.protocol.media.EXTENSIONS`.
    kind: Mapped[str] = mapped_column(PlainText())
    name: Mapped[str] = mapped_column(PlainText())
    step: Mapped[int] = mapped_column(BigInteger)
    caption: Mapped[str] = mapped_column(PlainText())
    size: Mapped[int] = mapped_column(BigInteger)
    # The name of the file in the trial's folder, which `det_keras.protocol.media` checked.
    file: Mapped[str] = mapped_column(PlainText())
    report_time: Mapped[datetime]


class ProvenanceRow(Base):
    """Where an experiment, a trial or a job comes from."""

    __tablename__ = "provenance"

    # ``experiment:7``, ``trial:12``, ``model:12`` (of a trial) or ``task:UUID``; the newest run of a trial counts.
    subject: Mapped[str] = mapped_column(PlainText(), primary_key=True)
    record: Mapped[dict[str, Any]]


class LogRow(Base):
    """One line of a task's log."""

    __tablename__ = "task_logs"
    __table_args__ = (Index("ix_task_logs_task_id_id", "task_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(PlainText(255))
    allocation_id: Mapped[str | None] = mapped_column(PlainText(255))
    time: Mapped[datetime]
    level: Mapped[str | None] = mapped_column(PlainText(16))
    # From the text of a line that begins with no level: filters use it, printed lines are not changed by it.
    derived_level: Mapped[str | None] = mapped_column(PlainText())
    stdtype: Mapped[str | None] = mapped_column(PlainText(16))
    source: Mapped[str | None] = mapped_column(PlainText(64))
    agent_id: Mapped[str | None] = mapped_column(PlainText(64))
    container_id: Mapped[str | None] = mapped_column(PlainText(64))
    rank: Mapped[int | None]
    text: Mapped[str] = mapped_column(PlainText())
