"""Storages of checkpoint files; each kind has its own module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from det_keras.errors import ConfigError
from det_keras.storage.azure import AzureStorage
from det_keras.storage.base import Orphan, Storage
from det_keras.storage.directory import DirectoryStorage, SharedFsStorage, container_mount
from det_keras.storage.gcs import GcsStorage
from det_keras.storage.s3 import S3Storage

__all__ = [
    "AzureStorage",
    "DirectoryStorage",
    "GcsStorage",
    "Orphan",
    "S3Storage",
    "SharedFsStorage",
    "Storage",
    "container_mount",
    "from_config",
]

_OBJECT_STORES: Mapping[str, tuple[Callable[..., Storage], tuple[str, ...]]] = {
    "azure": (AzureStorage, ("container", "connection_string", "account_url", "credential")),
    "gcs": (GcsStorage, ("bucket", "prefix")),
    "s3": (S3Storage, ("bucket", "prefix", "access_key", "secret_key", "endpoint_url")),
}


def from_config(section: Mapping[str, Any], *, mount: Path | None = None) -> Storage:
    """Return the storage that a `checkpoint_storage` section describes.

    Args:
        section: the section in normal form, with `type`.
        mount: where this process finds the `host_path` of a `shared_fs`; None for that path itself.

    Raises:
        ConfigError: there is no such type, or the package that it requires is not installed.
    """
    kind = str(section.get("type"))
    if kind == "directory":
        return DirectoryStorage(section["container_path"])
    if kind == "shared_fs":
        return SharedFsStorage(section["host_path"], section.get("storage_path"), mount)
    if kind in _OBJECT_STORES:
        open_storage, fields = _OBJECT_STORES[kind]
        return open_storage(**{name: section[name] for name in fields if section.get(name) is not None})
    raise ConfigError.at(
        "checkpoint_storage.type",
        f"there is no storage {kind!r}. Use `directory`, `shared_fs`, `s3`, `gcs` or `azure`.",
    )
