"""What the files of a master occupy, by kind."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from det_keras.home import Home
from det_keras.master.checkpoints.records import DELETED
from det_keras.master.database.models import CheckpointRow, MediaRow
from det_keras.master.database.store import Store

_PERIOD_S = 60.0


@dataclass(frozen=True)
class Usage:
    """One kind of files.

    Attributes:
        kind: what they are.
        size_bytes: how much they occupy.
        place: where they are.
        advice: how they become fewer.
    """

    kind: str
    size_bytes: int
    place: str
    advice: str


class DiskUsage:
    """Looks up what each kind of files occupies, at most once a minute: there can be very many files.

    Args:
        store: the database.
        home: the data root.
        code: the folder with the code of experiments.
    """

    def __init__(self, store: Store, home: Home, code: Path) -> None:
        self._store = store
        self._home = home
        self._code = code
        self._lock = threading.Lock()
        self._found: list[Usage] = []
        self._found_at = -math.inf

    def read(self) -> list[Usage]:
        """Return what each kind occupies; checkpoints and media also in storages on other machines.

        Raises:
            UnavailableError: the database cannot be used at the moment.
        """
        with self._lock:
            if time.monotonic() - self._found_at >= _PERIOD_S:
                self._found = self._look()
                self._found_at = time.monotonic()
            return self._found

    def _look(self) -> list[Usage]:
        with self._store.reading() as session:
            kept = CheckpointRow.state != DELETED
            checkpoints = session.scalar(select(func.sum(CheckpointRow.size)).where(kept)) or 0
            media = session.scalar(select(func.sum(MediaRow.size))) or 0
        storages = "the storages of experiments"
        own_logs = self._home.root.glob(f"{self._home.master_log.name}*")
        return [
            Usage(
                "database, with the logs of trials",
                self._store.database.size_bytes(),
                self._store.database.name,
                "delete experiments, `det master prune`, or `log_retention_days` of the config",
            ),
            Usage("checkpoints", int(checkpoints), storages, "`det checkpoint gc`, `save_*` of the config"),
            Usage("media", int(media), storages, "delete experiments"),
            Usage("code of experiments", size_of(self._code), str(self._code), "delete experiments"),
            Usage(
                "files of tasks",
                size_of(self._home.logs) + size_of(self._home.root / "work"),
                str(self._home.logs),
                "removed an hour after the task has ended",
            ),
            Usage(
                "environments",
                size_of(self._home.environments),
                str(self._home.environments),
                "removed 30 days after their last use, or by `det master prune`",
            ),
            Usage(
                "runs without a master", size_of(self._home.runs), str(self._home.runs), "`det master prune`"
            ),
            Usage(
                "log of the master",
                sum(size_of(file) for file in own_logs),
                str(self._home.master_log),
                "rotated",
            ),
        ]


def size_of(place: Path) -> int:
    """Return the bytes of a file, or of the files below a folder; files that vanish meanwhile do not count."""
    if not place.is_dir():
        return _size_of_file(place)
    return sum(_size_of_file(Path(folder, name)) for folder, _, names in os.walk(place) for name in names)


def _size_of_file(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        return 0
