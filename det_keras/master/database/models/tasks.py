"""Tasks, their attempts and logs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, false
from sqlalchemy.orm import Mapped, mapped_column

from det_keras.master.database.models.base import Base, PlainText


class TaskRow(Base):
    """A task that runs on slots: a trial or a generic job."""

    __tablename__ = "tasks"

    id: Mapped[str] = mapped_column(PlainText(255), primary_key=True)
    kind: Mapped[str] = mapped_column(PlainText(32), index=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    # Of a generic job; a trial is where its experiment is.
    workspace_id: Mapped[int] = mapped_column(default=1, server_default="1")
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


class DisabledSlotRow(Base):
    """A slot, or a whole machine, that is given to no task."""

    __tablename__ = "disabled_slots"

    node: Mapped[str] = mapped_column(PlainText(255), primary_key=True)
    # -1 for the whole machine: its own slots stay as they are when it is enabled again.
    slot: Mapped[int] = mapped_column(primary_key=True)
    # Tasks that run there continue to their ends.
    is_draining: Mapped[bool] = mapped_column(default=False)


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
