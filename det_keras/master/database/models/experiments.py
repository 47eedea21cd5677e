"""Experiments, their searches and trials."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Float, ForeignKey, Index, false
from sqlalchemy.orm import Mapped, mapped_column

from det_keras.master.database.models.base import Base, PlainText


class ExperimentRow(Base):
    """One config and its search."""

    __tablename__ = "experiments"
    # A number is never used again, even after a deletion.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - SQLAlchemy's own way

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(PlainText(32), index=True)
    archived: Mapped[bool] = mapped_column(default=False)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    # SQLite adds no column with a reference to a table that has rows: `teams/placing.py` keeps it valid.
    project_id: Mapped[int] = mapped_column(default=1, server_default="1", index=True)
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
    # Machines on which it is not run again, since a log policy excluded them.
    excluded_nodes: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    # Days that its log is kept; None for what its experiment says.
    log_retention_days: Mapped[int | None]
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
