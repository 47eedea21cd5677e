"""TensorBoard's event files: written to a local directory, and copied to the checkpoint storage as they grow.

They are stored beside the trial's checkpoints, as <cluster id>/tensorboard/experiment/<id>/trial/<id>/. In a local run
they stay in the run directory, where `tensorboard --logdir` finds them.
"""

from __future__ import annotations

import enum
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from det_keras.cluster_info import ClusterInfo
from det_keras.storage import Storage
from det_keras.storage.names import events_prefix

logger = logging.getLogger(__name__)

_PERIOD_S = 5.0
# Copying may take this fraction of the time, as a divisor.
_SHARE = 50.0


class TensorboardMode(enum.Enum):
    """Which workers write and upload TensorBoard's files.

    Attributes:
        AUTO: reported metrics are written as events, and the chief's files are copied to the storage as they grow.
        MANUAL: the script writes the files, and calls `upload_tensorboard_files`.
    """

    AUTO = "AUTO"
    MANUAL = "MANUAL"


class EventFiles:
    """A local directory of event files and, in a trial, its copy in the storage.

    Args:
        directory: the directory of the files; None for a temporary directory, deleted by `close`.
        storage: stores the copy; None if there is no copy.
        prefix: prefix of the files' names in the storage.
        rank: rank of this worker.
        watched: copy changed files in the background, and once more at the end.
        period_s: time between two checks for changes, in seconds.
    """

    def __init__(
        self,
        directory: Path | None,
        storage: Storage | None = None,
        prefix: str = "",
        *,
        rank: int = 0,
        watched: bool = False,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._is_temporary = directory is None
        self._path = directory
        self._storage = storage
        self._prefix = prefix
        self._rank = rank
        self._period_s = period_s
        self._sent: dict[Path, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if watched and storage is not None:
            self._thread = threading.Thread(target=self._watch, name="det-tensorboard", daemon=True)
            self._thread.start()

    @property
    def path(self) -> Path:
        """The directory; a temporary directory is created at the first access."""
        with self._lock:
            if self._path is None:
                self._path = Path(tempfile.mkdtemp(prefix="det-tensorboard-"))
            return self._path

    def upload(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
    ) -> None:
        """Copy files that changed to the storage.

        Args:
            selector: returns whether to copy a file, by its path relative to the directory.
            mangler: returns the path in the storage, by the relative path and the rank.

        Raises:
            ValueError: `mangler` returned a path outside of the trial's directory.
            OSError: the storage cannot be written.
        """
        with self._lock:
            root = self._path
            if self._storage is None or root is None or not root.is_dir():
                return
            for path in sorted(path for path in root.rglob("*") if path.is_file()):
                relative = path.relative_to(root)
                status = path.stat()
                # Read before the copy: a file that grows during the copy is copied again later.
                mark = (status.st_size, status.st_mtime_ns)
                if self._sent.get(path) == mark or not selector(relative):
                    continue
                self._storage.store_file(f"{self._prefix}/{_inside(mangler(relative, self._rank))}", path)
                self._sent[path] = mark

    def close(self) -> None:
        """Copy changed files if they are watched, and remove a temporary directory; a second call has no effect."""
        is_copied = True
        if self._thread is not None:
            self._closing.set()
            self._thread.join()
            self._thread = None
            # After the thread has ended, so that no copy of it can replace this last one.
            is_copied = self._try_upload()
        if self._is_temporary and is_copied and self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)

    def _watch(self) -> None:
        pause_s = self._period_s
        while not self._closing.wait(pause_s):
            started = time.monotonic()
            self._try_upload()
            # A file that grew is copied completely. Big files are copied less often, to limit the cost.
            pause_s = max(self._period_s, _SHARE * (time.monotonic() - started))

    def _try_upload(self) -> bool:
        try:
            self.upload()
        except OSError as error:
            logger.warning("TensorBoard's files could not be stored from %s: %s", self._path, error)
            return False
        return True


def prefix_of(info: ClusterInfo) -> str:
    """Return the prefix of the events of this process's trial in the storage."""
    assert info.trial is not None
    return events_prefix(info.cluster_id, info.trial.experiment_id, info.trial.trial_id)


def _inside(path: Path) -> str:
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{str(path)!r} cannot be the path of a TensorBoard file. Return a relative path.")
    return path.as_posix()
