"""Calls about checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from det_keras.protocol.api.transport import Transport
from det_keras.protocol.states import UNSPECIFIED, named

_PATH = "/api/v1/checkpoints"
# Each unfinished checkpoint takes a few requests to its store.
_SWEEP_TIMEOUT_S = 600.0


class Checkpoints:
    """Calls about checkpoints; every method raises MasterError when the master rejects the call.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, uuid: str, **options: Any) -> dict[str, Any]:
        """Return the record of a checkpoint."""
        checkpoint: dict[str, Any] = self._transport.get(f"{_PATH}/{uuid}", **options)["checkpoint"]
        return checkpoint

    def report(self, checkpoint: Mapping[str, object]) -> None:
        """Report a checkpoint whose files are in the storage."""
        self._transport.post(_PATH, checkpoint)

    def set_metadata(self, uuid: str, metadata: Mapping[str, object]) -> None:
        """Replace the metadata of a checkpoint."""
        unused = {"uuid": uuid, "resources": {}, "training": {}, "state": named(UNSPECIFIED)}
        self._transport.post(f"{_PATH}/{uuid}/metadata", {"checkpoint": {**unused, "metadata": metadata}})

    def report_deleted(self, uuid: str) -> None:
        """Report that the files of a checkpoint have been deleted."""
        self._transport.patch(_PATH, {"checkpoints": [{"uuid": uuid, "resources": {"resources": {}}}]})

    def remove_files(self, uuids: Sequence[str], globs: Sequence[str]) -> None:
        """Delete the files of checkpoints that match `globs`; without globs, only list the files again."""
        body = {"checkpointUuids": uuids, "checkpointGlobs": globs}
        self._transport.post(f"{_PATH}/rm", body)

    def delete(self, uuids: Sequence[str]) -> None:
        """Delete checkpoints."""
        self._transport.delete(_PATH, {"checkpointUuids": uuids})

    def remove_orphans(self, min_age_s: float, *, dry_run: bool) -> dict[str, Any]:
        """Find what unfinished checkpoints left in the storages, and remove it unless it is a dry run.

        Args:
            min_age_s: age in seconds from which unfinished checkpoints of other machines count.
            dry_run: only find them.
        """
        body = {"minAgeS": min_age_s, "dryRun": dry_run}
        swept: dict[str, Any] = self._transport.post(f"{_PATH}/orphans", body, timeout_s=_SWEEP_TIMEOUT_S)
        return swept

    def archive(self, uuid: str) -> Iterator[bytes]:
        """Yield the bytes of a gzip-compressed tar archive with the files of a checkpoint."""
        return self._transport.download(f"/checkpoints/{uuid}", accept="application/gzip")
