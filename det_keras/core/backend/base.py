"""The contract of backends: the difference between a training process in a trial and in a local run.

Everything above (metrics, checkpoints, preemption, the searcher's lengths) works the same wherever it
runs; a backend says where reports go and who may ask the process to stop.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ENGINE_FORMAT", "Backend", "CheckpointRecord", "Operation"]

#: ``format`` in the metadata of the checkpoints that `context.fit` writes, and looks after.
ENGINE_FORMAT = "keras"


@dataclass(frozen=True)
class CheckpointRecord:
    """A committed checkpoint as it is reported and listed.

    Attributes:
        uuid: its name in the storage.
        steps_completed: batches trained before it was taken, over the whole script.
        resources: relative path -> size in bytes; directories end with ``/``.
        metadata: the content of its ``metadata.json``.
    """

    uuid: str
    steps_completed: int
    resources: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """What the searcher wants of this trial: train until `length`, validate, report.

    Attributes:
        length: absolute, in the unit of ``searcher.max_length``.
        completed: it was reported complete and no longer one was issued.
    """

    length: int
    completed: bool = False


class Backend(abc.ABC):
    """Where a training process reports to and who may ask it to stop.

    Attributes:
        is_preemptible: whether anybody but a signal can ask the process to stop.
    """

    is_preemptible: bool = True

    @property
    def unshared(self) -> Backend:
        """The backend whose calls do not wait for other workers; on the chief the one that all of them share."""
        return self

    @property
    def tensorboard_directory(self) -> Path | None:
        """Where TensorBoard events stay; None where they go to the checkpoint storage."""
        return None

    @abc.abstractmethod
    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Record `metrics` of `group` at a batch count; returns at once, the same report twice is one."""

    @abc.abstractmethod
    def report_system_metrics(self, group: str, metrics: Mapping[str, Any]) -> None:
        """Record a sample of the machine's load, in a profiler group such as ``cpu``; returns at once."""

    @abc.abstractmethod
    def report_progress(self, fraction: float) -> None:
        """Record how much of the training is done, 0 to 1; returns at once."""

    @abc.abstractmethod
    def set_status(self, status: str) -> None:
        """Record what the process is doing, such as ``training``; returns at once."""

    @abc.abstractmethod
    def report_checkpoint(self, record: CheckpointRecord) -> None:
        """Record a committed checkpoint; returns at once."""

    @abc.abstractmethod
    def checkpoints(self) -> list[CheckpointRecord]:
        """Return this run's committed checkpoints, the newest first."""

    @abc.abstractmethod
    def checkpoint_metadata(self, uuid: str) -> dict[str, Any]:
        """Return the metadata of a checkpoint.

        Raises:
            DetError: the checkpoint is unknown.
        """

    @abc.abstractmethod
    def report_checkpoint_deleted(self, uuid: str) -> None:
        """Record that a checkpoint's files are gone; returns at once."""

    @abc.abstractmethod
    def run_metadata(self) -> dict[str, Any]:
        """Return what `set_run_metadata` stored; {} if nothing was."""

    @abc.abstractmethod
    def set_run_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Store JSON values for this run, in place of those stored before, and return them."""

    @abc.abstractmethod
    def context_directory(self) -> bytes:
        """Return the submitted code as a gzip-compressed tar archive; empty where nothing was submitted.

        Raises:
            DetError: the master does not hand it out.
        """

    @abc.abstractmethod
    def original_config(self) -> str | None:
        """Return the config as the user wrote it, as YAML text; None where nothing was submitted.

        Raises:
            DetError: the master does not hand it out.
        """

    @abc.abstractmethod
    def rewind(self, steps_completed: int) -> None:
        """Discard reports after a batch count, because training resumes from there."""

    @abc.abstractmethod
    def best_validation(self) -> float | None:
        """Return the best searcher metric so far over the experiment, None while there is none."""

    @abc.abstractmethod
    def current_operation(self) -> Operation | None:
        """Return what the searcher wants, None where no searcher gives lengths."""

    @abc.abstractmethod
    def complete_operation(self, operation: Operation, metric: Any) -> None:
        """Report the searcher's metric at the end of `operation`; returns when it has arrived."""

    @abc.abstractmethod
    def report_early_exit(self, reason: str) -> None:
        """Report to the searcher that the trial ends early, and why; returns when the report has arrived."""

    @abc.abstractmethod
    def wait_for_preemption(self, timeout_s: float) -> bool:
        """Block until the process is asked to stop, at most `timeout_s`; return whether it was."""

    @abc.abstractmethod
    def acknowledge_preemption(self) -> None:
        """Promise to exit soon and ask to be resumed."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Return when every report has arrived, or can no longer arrive."""

    @abc.abstractmethod
    def close(self) -> None:
        """Flush and give back what the backend holds; a second call does nothing."""
