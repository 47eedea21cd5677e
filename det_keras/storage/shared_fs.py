"""Stores checkpoints on a file system that every machine mounts at the same path."""

from __future__ import annotations

import os
from pathlib import Path

from det_keras.errors import ConfigError
from det_keras.storage.directory import DirectoryStorage


class SharedFsStorage(DirectoryStorage):
    """Stores checkpoints below `host_path`, or below `storage_path` inside it.

    Args:
        host_path: absolute path of the mount point.
        storage_path: a directory inside `host_path`, relative or absolute.
        mount: where this process finds `host_path`, if it is mounted elsewhere; containers of a cluster do that.

    Raises:
        ConfigError: `storage_path` lies outside `host_path`.
    """

    def __init__(self, host_path: str, storage_path: str | None = None, mount: Path | None = None) -> None:
        base = Path(os.path.normpath(host_path))
        root = Path(os.path.normpath(base / (storage_path or "")))
        if root != base and base not in root.parents:
            raise ConfigError.at(
                "checkpoint_storage.storage_path", f"{storage_path!r} is not inside host_path {host_path!r}."
            )
        super().__init__(root if mount is None else mount / root.relative_to(base))
