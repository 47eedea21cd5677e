"""The backend of a local run: a run directory replaces the master.

<run_dir>/lock               held while a process uses the directory; names its pid
<run_dir>/run.json           the seed, and whether the training is finished
<run_dir>/metrics.jsonl      one report per line: time, group, steps_completed, metrics
<run_dir>/checkpoints/       a checkpoint storage
<run_dir>/media/             the files of logged media
<run_dir>/provenance.json    where the newest process of the run comes from, and the layers of the model
<run_dir>/models.json        the versions of registered models
<run_dir>/media.jsonl        one item of media per line; of lines with the same kind, name and step the last one counts
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any

from det_keras.core.backend.base import (
    ENGINE_FORMAT,
    Backend,
    CheckpointRecord,
    MediaFolder,
    MediaRecord,
    Operation,
)
from det_keras.core.registry import RunRegistry
from det_keras.errors import CheckpointError, DetError
from det_keras.files import write_file
from det_keras.protocol.metrics import is_better, number, rank
from det_keras.protocol.values import finite, now, timestamp
from det_keras.provenance.capture import Captures
from det_keras.storage import DirectoryStorage

logger = logging.getLogger(__name__)

# A process that was killed holds its lock until the kernel has freed its memory, and a worker until it notices that its
# launcher was killed: who starts a script again at once waits so long.
_DYING_S, _POLL_S = 5.0, 0.05
# The open lock files. A forked child, such as a worker that loads data, inherits them and with them the locks, which
# would then last as long as the child, also after a kill of this process.
_held: weakref.WeakSet[IO[str]] = weakref.WeakSet()


def _release_in_child() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in list(_held):
        # Replaced, not closed: the child's file object would later close another file that got the same number.
        os.dup2(nothing, file.fileno())
    os.close(nothing)


os.register_at_fork(after_in_child=_release_in_child)


class RunDirectory:
    """The directory of one local run, locked while it is open.

    Args:
        path: created if it does not exist.

    Raises:
        DetError: another process uses it, and the message has its pid; or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._acquire()
        except OSError as error:
            raise DetError(
                f"The run directory {self.path} cannot be used: {error.strerror}. Use another `run_dir`, or "
                "another DET_KERAS_HOME."
            ) from error

    @property
    def checkpoints(self) -> Path:
        """Root of the run's checkpoint storage."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """The file of reported metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def media(self) -> Path:
        """The file that lists logged media, one JSON object per line."""
        return self.path / "media.jsonl"

    @property
    def alerts(self) -> Path:
        """The file of alerts, one JSON object per line."""
        return self.path / "alerts.jsonl"

    @property
    def tensorboard(self) -> Path:
        """The directory of TensorBoard events."""
        return self.path / "tensorboard"

    def read(self, name: str = "run.json") -> dict[str, Any]:
        """Return the values that `update` stored in the file of this name; {} before the first."""
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        assert isinstance(content, dict)
        return content

    def update(self, name: str = "run.json", /, **values: Any) -> None:
        """Store `values`, together with earlier values, in one step."""
        write_file(self.path / name, json.dumps({**self.read(name), **values}, indent=1), is_durable=True)

    def close(self) -> None:
        """Release the directory for other processes."""
        if self._lock.closed:
            return
        _held.discard(self._lock)
        # Closing alone would leave the lock to a child that was forked a moment ago and has not begun to run.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._lock.close()

    def _acquire(self) -> IO[str]:
        file = (self.path / "lock").open("a+", encoding="utf-8")
        deadline = time.monotonic() + _DYING_S
        while not _lock(file):
            file.seek(0)
            pid = file.read().strip() or "unknown"
            if pid == str(os.getpid()) or time.monotonic() > deadline:
                file.close()
                raise DetError(
                    f"The run directory {self.path} is in use by process {pid}. "
                    "Wait for it, or use another `run_dir`."
                )
            time.sleep(_POLL_S)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        _held.add(file)
        return file


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class LocalBackend(Backend):
    """Stores reports in a run directory, in place of a master.

    Args:
        run: the open directory; closed with the backend.
        metric: name of the searcher's metric; None if there is none.
        smaller_is_better: how the metric compares.
    """

    is_preemptible = False

    def __init__(
        self, run: RunDirectory, *, metric: str | None = None, smaller_is_better: bool = True
    ) -> None:
        self.run = run
        self._metric = metric
        self._smaller_is_better = smaller_is_better
        # The profiler reports from its own thread.
        self._lock = threading.Lock()
        # Only a digest of each report is stored: a long training makes hundreds of thousands of reports.
        self._reported: set[bytes] = set()
        self._best: float | None = None
        # Not the lock of reports: training does not wait for a deletion.
        self._pruning = threading.Lock()
        self._recording = threading.Lock()
        self._captures = Captures()
        #: Called with each checkpoint before others are deleted.
        self.on_checkpoint: Callable[[CheckpointRecord], None] = lambda record: None
        #: Checkpoints that are not deleted, whatever their age.
        self.held: frozenset[str] = frozenset()
        # All checkpoints of the run, newest first; None until the first one is reported.
        self._stored: list[CheckpointRecord] | None = None
        for row in _read_rows(run.metrics):
            self._remember(row)
        self._closed = False

    @property
    def tensorboard_directory(self) -> Path | None:
        return self.run.tensorboard

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, object]) -> None:
        row = {"group": group, "steps_completed": steps_completed, "metrics": finite(metrics)}
        with self._lock:
            if _digest(row) in self._reported:
                return
            with self.run.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": timestamp(now()), **row}) + "\n")
            self._remember(row)

    def report_system_metrics(self, group: str, metrics: Mapping[str, object]) -> None:
        row = {"time": timestamp(now()), "group": group, "metrics": finite(metrics)}
        with self._lock, (self.run.path / "system.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def report_progress(self, fraction: float) -> None:
        return

    def set_status(self, status: str) -> None:
        return

    def report_checkpoint(self, record: CheckpointRecord) -> None:
        # The directory in the storage is the record; only superfluous checkpoints are pruned here. They are listed only
        # once: no other process stores or deletes checkpoints of this run.
        with self._pruning:
            if self._stored is None:
                self._stored = self.checkpoints()
            others = [stored for stored in self._stored if stored.uuid != record.uuid]
            self._stored = sorted([record, *others], key=lambda stored: stored.steps_completed, reverse=True)
            self.on_checkpoint(record)
            self._prune()

    def checkpoints(self) -> list[CheckpointRecord]:
        storage = DirectoryStorage(self.run.checkpoints)
        found = []
        for path in self.run.checkpoints.glob("*-*-*-*-*/metadata.json"):
            if path.parent.name.startswith("."):
                continue
            try:
                metadata = json.loads(path.read_text(encoding="utf-8"))
                steps_completed = int(metadata["steps_completed"])
            except (OSError, ValueError, KeyError):
                logger.warning(
                    "Checkpoint %s has no readable metadata.json and is ignored.", path.parent.name
                )
                continue
            uuid = path.parent.name
            order = (steps_completed, path.stat().st_mtime_ns)
            found.append((order, CheckpointRecord(uuid, steps_completed, storage.list_files(uuid), metadata)))
        return [record for _, record in sorted(found, key=lambda item: item[0], reverse=True)]

    def checkpoint_metadata(self, uuid: str) -> dict[str, Any]:
        path = self.run.checkpoints / uuid / "metadata.json"
        try:
            metadata: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"There is no checkpoint {uuid!r} with metadata in this run: {error}."
            ) from error
        return metadata

    def report_checkpoint_deleted(self, uuid: str) -> None:
        with self._pruning:
            if self._stored is not None:
                self._stored = [record for record in self._stored if record.uuid != uuid]

    def open_media(self) -> MediaFolder:
        rows = _newest_media(self.run.media)
        names = [field.name for field in fields(MediaRecord)]
        records = [MediaRecord(**{name: row[name] for name in names}) for row in rows]
        return MediaFolder("media", records, DirectoryStorage(self.run.path))

    def report_media(self, record: MediaRecord) -> None:
        row = {"time": timestamp(now()), **asdict(record)}
        with self._lock, self.run.media.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def open_registry(self) -> AbstractContextManager[RunRegistry]:
        return contextlib.nullcontext(RunRegistry(self.run.path))

    def alert(self, title: str, description: str, level: str) -> None:
        row = {"time": timestamp(now()), "level": level, "title": title, "description": description}
        with self._lock, self.run.alerts.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        logger.info("There is no master, so the alert is only kept in %s.", self.run.alerts)

    def run_metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self.run.read().get("metadata", {})
        return metadata

    def set_run_metadata(self, metadata: Mapping[str, object]) -> dict[str, Any]:
        self.run.update(metadata=dict(metadata))
        return self.run_metadata()

    def context_directory(self) -> bytes:
        return b""

    def original_config(self) -> str | None:
        return None

    def rewind(self, steps_completed: int) -> None:
        with self._lock:
            rows = _read_rows(self.run.metrics)
            kept = [row for row in rows if row["steps_completed"] <= steps_completed]
            if len(kept) == len(rows):
                return
            _write_rows(self.run.metrics, kept)
            self._reported, self._best = set(), None
            for row in kept:
                self._remember(row)

    def best_validation(self) -> float | None:
        return self._best

    def current_operation(self) -> Operation | None:
        return None

    def complete_operation(self, operation: Operation, metric: object) -> None:
        return

    def report_early_exit(self, reason: str) -> None:
        return

    def wait_for_preemption(self, timeout_s: float) -> bool:
        return False

    def acknowledge_preemption(self) -> None:
        return

    def report_provenance(self, make: Callable[[], dict[str, Any]]) -> None:
        def store(record: dict[str, Any]) -> None:
            with self._recording:
                self.run.update("provenance.json", **record)

        self._captures.start(make, then=store)

    def flush(self) -> None:
        return

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._captures.close()
        _newest_media(self.run.media)
        self.run.close()

    def _remember(self, row: Mapping[str, Any]) -> None:
        self._reported.add(_digest(row))
        value = self._searcher_metric(row)
        if value is not None and is_better(value, self._best, smaller_is_better=self._smaller_is_better):
            self._best = value

    def _searcher_metric(self, row: Mapping[str, Any]) -> float | None:
        if self._metric is None or row["group"] != "validation":
            return None
        value = row["metrics"].get(self._metric)
        return float(value) if isinstance(value, int | float) else None

    def _prune(self) -> None:
        storage = DirectoryStorage(self.run.checkpoints)
        assert self._stored is not None
        held = self.held | RunRegistry(self.run.path).checkpoints()
        for record in superfluous(self._stored, smaller_is_better=self._smaller_is_better):
            if record.uuid in held:
                continue
            with contextlib.suppress(OSError):
                storage.delete(record.uuid)
                self._stored.remove(record)


def _digest(row: Mapping[str, Any]) -> bytes:
    """Return a digest of a report, independent of its time."""
    content = json.dumps([row["group"], row["steps_completed"], row["metrics"]], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=16).digest()


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for line in lines:
        # A line that a kill cut off is ignored; the resumed training makes the report again.
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    if len(rows) < len(lines):
        _write_rows(path, rows)
    return rows


def _newest_media(path: Path) -> list[dict[str, Any]]:
    """Return the last line of each item of media, and remove the others from the file."""
    rows = _read_rows(path)
    # Removed before it is entered again, so that the order is that of the lines that count.
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["kind"], row["name"], row["step"])
        newest.pop(key, None)
        newest[key] = row
    if len(newest) < len(rows):
        _write_rows(path, list(newest.values()))
    return list(newest.values())


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    write_file(path, "".join(json.dumps(row) + "\n" for row in rows))


def superfluous(
    records: Sequence[CheckpointRecord], *, smaller_is_better: bool = True
) -> list[CheckpointRecord]:
    """Return all checkpoints of `fit` except the two newest, the best, and the last of each phase.

    A resume may need the checkpoint before the newest. A script may need the weights at the end of a phase.

    Args:
        records: all checkpoints of the run, newest first; those that a script stores itself are kept.
        smaller_is_better: how the searcher's metric compares.
    """
    records = [record for record in records if record.metadata.get("format") == ENGINE_FORMAT]
    last_of_phase: dict[Any, str] = {}
    for record in records:
        last_of_phase.setdefault(record.metadata.get("phase"), record.uuid)
    kept = {record.uuid for record in records[:2]} | set(last_of_phase.values())
    ranked = [
        (rank(value, smaller_is_better=smaller_is_better), record.uuid)
        for record in records
        if (value := number(record.metadata.get("searcher_metric"))) is not None
    ]
    if ranked:
        kept.add(min(ranked)[1])
    return [record for record in records if record.uuid not in kept]
