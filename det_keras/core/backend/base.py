"""The contract of backends: the difference between a training process in a trial and a local run.

Everything above (metrics, checkpoints, preemption, the searcher's lengths) is the same in both. A backend defines where
reports go and what can request the process to stop.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from det_keras.core.registry import Registry
from det_keras.storage import Storage

#: ``format`` in the metadata of the checkpoints that `context.fit` writes and prunes.
ENGINE_FORMAT = "keras"


@dataclass(frozen=True)
class CheckpointRecord:
    """A committed checkpoint, as reported and listed.

    Attributes:
        uuid: its name in the storage.
        steps_completed: batches trained before it was taken, over the whole script.
        resources: relative path -> size in bytes; directories end with ``/``.
        metadata: the content of its ``metadata.json``.
    """

    uuid: str
    steps_completed: int
    resources: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class MediaRecord:
    """A stored item of media, as reported and listed; kind, name and step identify it.

    Attributes:
        kind: such as ``image``.
        name: chosen by the user.
        step: chosen by the user, usually the number of batches trained.
        size: size of its file in bytes.
        file: name of its file.
        caption: text that is shown with it.
    """

    kind: str
    name: str
    step: int
    size: int
    file: str
    caption: str = ""


@dataclass(frozen=True)
class MediaFolder:
    """The place of a run's media.

    Attributes:
        prefix: prefix of the names of the files in the storage.
        records: what is stored already.
        storage: the storage of the files; None for that of the checkpoints.
    """

    prefix: str
    records: list[MediaRecord]
    storage: Storage | None = None


@dataclass(frozen=True)
class Operation:
    """A request of the searcher to this trial: train until `length`, validate, report.

    Attributes:
        length: absolute, in the unit of ``searcher.max_length``.
        completed: it was reported complete, and the searcher has given no longer length since.
    """

    length: int
    completed: bool = False


class Backend(abc.ABC):
    """The destination of reports, and the source of requests to stop.

    Attributes:
        is_preemptible: whether requests to stop may come from elsewhere than signals.
        keeps_provenance: whether `report_provenance` stores a record.
    """

    is_preemptible: bool = True
    keeps_provenance: bool = True

    @property
    def unshared(self) -> Backend:
        """The backend whose calls do not wait for other workers; on the chief, the backend behind the shared one."""
        return self

    @property
    def tensorboard_directory(self) -> Path | None:
        """The directory that keeps TensorBoard events; None if they go to the checkpoint storage."""
        return None

    @abc.abstractmethod
    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, object]) -> None:
        """Record metrics; returns at once. The same report twice counts once.

        Args:
            group: ``training``, ``validation`` or a name chosen by the user.
            steps_completed: batches trained so far.
            metrics: values by name.
        """

    @abc.abstractmethod
    def report_system_metrics(self, group: str, metrics: Mapping[str, object]) -> None:
        """Record a sample of the machine's load, in a profiler group such as ``cpu``; returns at once."""

    @abc.abstractmethod
    def report_progress(self, fraction: float) -> None:
        """Record how much of the training is done, 0 to 1; returns at once."""

    @abc.abstractmethod
    def set_status(self, status: str) -> None:
        """Record the activity of the process, such as ``training``; returns at once."""

    @abc.abstractmethod
    def report_checkpoint(self, record: CheckpointRecord) -> None:
        """Record a committed checkpoint; returns at once."""

    @abc.abstractmethod
    def checkpoints(self) -> list[CheckpointRecord]:
        """Return this run's committed checkpoints, newest first."""

    @abc.abstractmethod
    def checkpoint_metadata(self, uuid: str) -> dict[str, Any]:
        """Return the metadata of a checkpoint.

        Raises:
            DetError: the checkpoint is unknown.
        """

    @abc.abstractmethod
    def report_checkpoint_deleted(self, uuid: str) -> None:
        """Record that a checkpoint's files were deleted; returns at once."""

    @abc.abstractmethod
    def open_media(self) -> MediaFolder:
        """Return the place of this run's media.

        Raises:
            MasterError: the master stores none.
        """

    @abc.abstractmethod
    def report_media(self, record: MediaRecord) -> None:
        """Record a stored item, which replaces one of the same kind, name and step; returns at once."""

    @abc.abstractmethod
    def open_registry(self) -> AbstractContextManager[Registry]:
        """Return the model registry that belongs to this run; it is closed at the end of the block."""

    @abc.abstractmethod
    def alert(self, title: str, description: str, level: str) -> None:
        """Send a message to those who wait for alerts; returns at once.

        Args:
            title: the subject.
            description: the text.
            level: a name of `logging`.
        """

    @abc.abstractmethod
    def run_metadata(self) -> dict[str, Any]:
        """Return the values that `set_run_metadata` stored; {} if there are none."""

    @abc.abstractmethod
    def set_run_metadata(self, metadata: Mapping[str, object]) -> dict[str, Any]:
        """Store JSON values for this run, replacing earlier values, and return them."""

    @abc.abstractmethod
    def context_directory(self) -> bytes:
        """Return the submitted code as a gzip-compressed tar archive; empty if none was submitted.

        Raises:
            DetError: the master refuses it.
        """

    @abc.abstractmethod
    def original_config(self) -> str | None:
        """Return the config as the user wrote it, as YAML text; None if none was submitted.

        Raises:
            DetError: the master refuses it.
        """

    @abc.abstractmethod
    def rewind(self, steps_completed: int) -> None:
        """Discard reports after a batch count, from which training resumes."""

    @abc.abstractmethod
    def best_validation(self) -> float | None:
        """Return the experiment's best searcher metric so far; None if there is none."""

    @abc.abstractmethod
    def current_operation(self) -> Operation | None:
        """Return the searcher's current request; None if no searcher gives lengths."""

    @abc.abstractmethod
    def complete_operation(self, operation: Operation, metric: object) -> None:
        """Report the searcher's metric at the end of `operation`; returns after the report has arrived."""

    @abc.abstractmethod
    def report_early_exit(self, reason: str) -> None:
        """Report to the searcher why the trial ends early; returns after the report has arrived."""

    def note_error(self, error: BaseException) -> None:
        """Note the exception with which the script ends; only a detached run reports it."""
        return

    @abc.abstractmethod
    def wait_for_preemption(self, timeout_s: float) -> bool:
        """Wait for a request to stop, at most `timeout_s` seconds; return whether there is one."""

    def listen_for_stop(self, listener: Callable[[], None]) -> None:
        """Call `listener`, on any thread, if the trial turns out to be stopping without a request to stop.

        Determined 0.38.1 sends no request to a trial that its search stops; see `TrialBackend`.
        """
        return

    @abc.abstractmethod
    def acknowledge_preemption(self) -> None:
        """Report that the process will exit soon and is to be resumed later."""

    @abc.abstractmethod
    def report_provenance(self, make: Callable[[], dict[str, Any]]) -> None:
        """Report where the training runs, or what it trains, in the background; a Determined master stores nothing.

        Args:
            make: returns the record; called on another thread, and only if the record is stored.
        """

    @abc.abstractmethod
    def flush(self) -> None:
        """Wait until every report has arrived, or was given up."""

    @abc.abstractmethod
    def close(self) -> None:
        """Flush and release all resources; a second call has no effect."""
