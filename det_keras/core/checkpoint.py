"""Checkpoints: from files in a directory to a committed, reported state."""

from __future__ import annotations

import json
import uuid as uuid_module
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from det_keras.core.backend.base import Backend, CheckpointRecord
from det_keras.core.file_plan import FilePlan
from det_keras.storage import Storage

__all__ = ["CheckpointContext"]

_METADATA_NAME = "metadata.json"


class CheckpointContext:
    """Stores checkpoints and reports them.

    Args:
        storage: where the bytes go.
        backend: whom to tell.
    """

    def __init__(self, storage: Storage, backend: Backend) -> None:
        self.storage = storage
        self._backend = backend

    @contextmanager
    def store_path(self, metadata: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
        """Yield an empty directory and a new UUID; at the end of the block they are a checkpoint.

        Args:
            metadata: JSON values, with ``steps_completed`` (batches trained so far); written as
                ``metadata.json`` and reported.

        Raises:
            ValueError: ``steps_completed`` is missing or no integer.
            OSError: the storage cannot be written; nothing of the checkpoint remains.
        """
        content = _document(metadata)
        uuid = str(uuid_module.uuid4())
        with self.storage.store_path(uuid) as directory:
            yield directory, uuid
            (directory / _METADATA_NAME).write_bytes(content)
        self.report(uuid, metadata)

    def with_metadata(self, plan: FilePlan, metadata: Mapping[str, Any]) -> FilePlan:
        """Return `plan` with the checkpoint's ``metadata.json``; raises as `store_path` does."""
        return replace(plan, files={**plan.files, _METADATA_NAME: (_document(metadata),)})

    def report(self, uuid: str, metadata: Mapping[str, Any]) -> None:
        """Tell that a checkpoint is committed."""
        resources = self.storage.list_files(uuid)
        record = CheckpointRecord(uuid, metadata["steps_completed"], resources, dict(metadata))
        self._backend.report_checkpoint(record)

    @contextmanager
    def restore_path(self, uuid: str) -> Iterator[Path]:
        """Yield a directory with the verified files of a checkpoint; do not write to it.

        Raises:
            CheckpointError: there is no such checkpoint, or it is corrupt.
        """
        with self.storage.restore_path(uuid) as directory:
            yield directory


def _document(metadata: Mapping[str, Any]) -> bytes:
    """Return the content of ``metadata.json``, checked."""
    steps_completed = metadata.get("steps_completed")
    if isinstance(steps_completed, bool) or not isinstance(steps_completed, int):
        raise ValueError(
            "A checkpoint's metadata needs `steps_completed`, the batches trained so far, as an integer. "
            f"Received: {steps_completed!r}."
        )
    return json.dumps(metadata, indent=1).encode()
