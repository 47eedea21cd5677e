"""Storages of checkpoint files; each kind has its own module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_keras.errors import ConfigError
from det_keras.storage.base import Storage
from det_keras.storage.directory import DirectoryStorage
from det_keras.storage.shared_fs import SharedFsStorage

__all__ = ["DirectoryStorage", "SharedFsStorage", "Storage", "from_config"]


def from_config(section: Mapping[str, Any], *, mount: Path | None = None) -> Storage:
    """Return the storage that a `checkpoint_storage` section describes.

    Args:
        section: the section in normal form, with `type`.
        mount: where this process finds the `host_path` of a `shared_fs`; None for that path itself.

    Raises:
        ConfigError: no backend exists for the type.
    """
    kind = section.get("type")
    if kind == "directory":
        return DirectoryStorage(section["container_path"])
    if kind == "shared_fs":
        return SharedFsStorage(section["host_path"], section.get("storage_path"), mount)
    raise ConfigError.at(
        "checkpoint_storage.type",
        f"{kind!r} has no backend here. Use `directory` with `container_path`, or `shared_fs` with `host_path`.",
    )
