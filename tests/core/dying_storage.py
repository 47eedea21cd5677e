"""A storage that kills the process that stores, once, at a named point. Importable by the writing process."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from det_keras.storage import DirectoryStorage

POINTS = ["directory made", "files written", "before the rename", "after the rename"]


class DyingStorage(DirectoryStorage):
    """Kills the storing process the first time that it comes to `point`.

    Args:
        root: of the storage.
        point: one of `POINTS`.
        mark: a file that says that it has happened.
    """

    def __init__(self, root: Path, point: str, mark: Path) -> None:
        super().__init__(root)
        self._point = point
        self._mark = mark

    @contextmanager
    def store_path(self, uuid: str, hashes: Mapping[str, str] | None = None) -> Iterator[Path]:
        rename = pathlib.Path.rename

        def renamed(path: Path, target: Path) -> Path:
            self._come_to("before the rename")
            result = rename(path, target)
            self._come_to("after the rename")
            return result

        pathlib.Path.rename = renamed  # type: ignore[method-assign]
        try:
            with super().store_path(uuid, hashes) as directory:
                self._come_to("directory made")
                yield directory
                self._come_to("files written")
        finally:
            pathlib.Path.rename = rename  # type: ignore[method-assign]

    def _come_to(self, point: str) -> None:
        if point == self._point and not self._mark.exists():
            self._mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
