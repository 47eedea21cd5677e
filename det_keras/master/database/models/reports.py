"""What trials report: metrics, checkpoints, media; where things come from."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Float, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from det_keras.master.database.models.base import Base, PlainText


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
