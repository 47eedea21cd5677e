"""Getting a checkpoint's files: from the storage if this machine sees it, else through the master.

A target directory appears as a whole and verified, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.errors import CheckpointError, ConfigError, DetError

if TYPE_CHECKING:
    from det_keras.client import Session
from det_keras.protocol.metrics import rank

__all__ = ["best_first", "default_target", "download", "fetch_checkpoint", "local_directory"]

_DOWNLOADABLE = ("STATE_COMPLETED", "STATE_PARTIALLY_DELETED")
_LOCAL_TYPES = ("directory", "shared_fs")
# The storage's own note on what was deleted from a checkpoint.
_DELETED_NAMES = ".deleted"
_METADATA_NAME = "metadata.json"


def fetch_checkpoint(session: Session, uuid: str) -> dict[str, Any]:
    """Return the record of a checkpoint."""
    return session.api.checkpoints.get(uuid)


def default_target(uuid: str) -> Path:
    """Return where a checkpoint goes that is downloaded without a directory being named."""
    return Path("checkpoints") / uuid


def best_first(checkpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return checkpoints with the best value of the searcher's metric first, those without one last, newest first."""

    def place(checkpoint: dict[str, Any]) -> tuple[tuple[bool, float], int]:
        training = checkpoint["training"]
        searcher = (training.get("experimentConfig") or {}).get("searcher") or {}
        smaller = bool(searcher.get("smaller_is_better", True))
        steps = int((checkpoint.get("metadata") or {}).get("steps_completed") or 0)
        return rank(training.get("searcherMetric"), smaller_is_better=smaller), -steps

    return sorted(checkpoints, key=place)


def download(session: Session, record: Mapping[str, Any], target: Path, *, only_master: bool = False) -> Path:
    """Put the files of a checkpoint into `target` and return it, absolute.

    Args:
        session: of the master that knows the checkpoint.
        record: the checkpoint.
        target: must not exist, or be empty.
        only_master: do not look for the storage on this machine.

    Raises:
        CheckpointError: the checkpoint is gone, or its files are not what they were; `target` is not touched.
        DetError: `target` is in use.
    """
    # Imported here, as all that `det --help` would load for nothing.
    import tempfile

    uuid = str(record["uuid"])
    if record["state"] not in _DOWNLOADABLE:
        state = str(record["state"]).removeprefix("STATE_")
        raise CheckpointError(f"Checkpoint `{uuid}` cannot be downloaded: its state is {state}.")
    target = target.expanduser().absolute()
    _check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".det-download-", dir=target.parent) as workshop:
        # Named as the checkpoint, which errors then speak of.
        draft = Path(workshop) / uuid
        if only_master or not _copy_local(record, draft):
            _fetch(session, uuid, draft)
        _verify(record, draft)
        (draft / _DELETED_NAMES).unlink(missing_ok=True)
        _complete_metadata(record, draft)
        draft.rename(target)
    return target


def _check_target(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise DetError(f"{target} is in the way. Name another directory with -o, or remove it.")


def local_directory(record: Mapping[str, Any]) -> Path | None:
    """Return the directory of a checkpoint in a storage that this machine sees; None if it sees none."""
    # Imported here, as all that `det --help` would load for nothing.
    from det_keras import storage

    section = ((record["training"].get("experimentConfig") or {}).get("checkpoint_storage")) or {}
    if section.get("type") not in _LOCAL_TYPES:
        return None
    uuid = str(record["uuid"])
    try:
        source = storage.from_config(section)
        if not source.exists(uuid):
            return None
    except (ConfigError, KeyError, OSError):
        # The section is another machine's business; the master will know.
        return None
    # These storages are directories: nothing is fetched, and the path stays.
    with source.raw_path(uuid) as path:
        return path


def _copy_local(record: Mapping[str, Any], draft: Path) -> bool:
    """Copy from a storage that this machine sees; return whether it did."""
    import shutil

    source = local_directory(record)
    if source is None:
        return False
    shutil.copytree(source, draft)
    return True


def _fetch(session: Session, uuid: str, draft: Path) -> None:
    import tarfile

    from det_keras.storage.archive import unpack_chunks

    draft.mkdir()
    try:
        unpack_chunks(session.api.checkpoints.archive(uuid), draft)
    except (tarfile.TarError, EOFError) as error:
        raise CheckpointError(f"The archive of checkpoint `{uuid}` is broken: {error}.") from error


def _verify(record: Mapping[str, Any], draft: Path) -> None:
    from det_keras.storage import manifest

    listed = {
        name: int(size) for name, size in (record.get("resources") or {}).items() if not name.endswith("/")
    }
    if manifest.MANIFEST_NAME in listed or (draft / manifest.MANIFEST_NAME).exists():
        manifest.verify_manifest(draft, ignored=_deleted(record, listed, draft / manifest.MANIFEST_NAME))
        return
    # A checkpoint of another make has no manifest; the master's record tells at least the sizes.
    for name, size_bytes in listed.items():
        path = draft / name
        if not path.is_file() or path.stat().st_size != size_bytes:
            raise CheckpointError(
                f"Checkpoint `{record['uuid']}` is corrupt: `{name}` is missing or has not {size_bytes} bytes."
            )


def _deleted(record: Mapping[str, Any], listed: Mapping[str, int], path: Path) -> frozenset[str]:
    """Return the files that are known to be deleted from this checkpoint."""
    if record["state"] != "STATE_PARTIALLY_DELETED":
        return frozenset()
    try:
        named = json.loads(path.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
    return frozenset(name for name in named if name not in listed)


def _complete_metadata(record: Mapping[str, Any], draft: Path) -> None:
    path = draft / _METADATA_NAME
    if not path.exists():
        path.write_text(json.dumps(record.get("metadata") or {}, indent=2), encoding="utf-8")
