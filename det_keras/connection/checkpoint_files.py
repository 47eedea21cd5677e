"""Gets the files of a checkpoint that a master lists: from its storage, or through the master.

A target directory of a download appears complete and verified, or not at all.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.errors import CheckpointError, ConfigError, DetError, MasterError
from det_keras.protocol.states import COMPLETED, PARTIALLY_DELETED, bare, named

if TYPE_CHECKING:
    from det_keras.client import Session

_LOCAL_TYPES = ("directory", "shared_fs")
_DOWNLOADABLE = (named(COMPLETED), named(PARTIALLY_DELETED))
# The storage's own list of files that were deleted from a checkpoint.
_DELETED_NAMES = ".deleted"
_METADATA_NAME = "metadata.json"
#: Where the files come from. `auto`: a storage on this machine, then the master, then the store if the master cannot
#: read it.
WAYS = ("auto", "master", "direct")


def local_directory(record: Mapping[str, Any]) -> Path | None:
    """Return the directory of a checkpoint in a storage on this machine; None if it is not on this machine."""
    # Imported here: `det --help` does not need it.
    from det_keras import storage

    section = _section(record)
    if section.get("type") not in _LOCAL_TYPES:
        return None
    uuid = str(record["uuid"])
    try:
        source = storage.from_config(section)
        if not source.exists(uuid):
            return None
    except (ConfigError, KeyError, OSError):
        # The storage is not usable on this machine; the master has access to it.
        return None
    # These storages are directories: the path stays valid after the block.
    with source.raw_path(uuid) as path:
        return path


def download(session: Session, record: Mapping[str, Any], target: Path, *, way: str = "auto") -> Path:
    """Write the files of a checkpoint to `target`; return its absolute path.

    Args:
        session: of the master that has the checkpoint.
        record: the checkpoint.
        target: must not exist, or must be empty.
        way: where the files come from; see `fetch`.

    Raises:
        CheckpointError: the checkpoint was deleted or is corrupt; `target` is not changed.
        DetError: `target` exists and is not an empty directory.
    """
    uuid = str(record["uuid"])
    if record["state"] not in _DOWNLOADABLE:
        state = bare(str(record["state"]))
        raise CheckpointError(f"Checkpoint `{uuid}` cannot be downloaded: its state is {state}.")
    target = target.expanduser().absolute()
    _check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".det-download-", dir=target.parent) as workshop:
        # Named like the checkpoint, so that errors contain its UUID.
        draft = Path(workshop) / uuid
        fetch(session, record, draft, way)
        _verify(record, draft)
        (draft / _DELETED_NAMES).unlink(missing_ok=True)
        _complete_metadata(record, draft)
        draft.rename(target)
    return target


def fetch(session: Session, record: Mapping[str, Any], draft: Path, way: str = "auto") -> None:
    """Write the files of a checkpoint to a new directory, as they are stored.

    Args:
        session: of the master that lists the checkpoint.
        record: the checkpoint.
        draft: the directory, which does not exist.
        way: one of `WAYS`.

    Raises:
        CheckpointError: they cannot be got in this way.
        ConfigError: the package for the storage is not installed.
    """
    if way == "auto" and (source := local_directory(record)) is not None:
        shutil.copytree(source, draft)
        return
    if way == "direct":
        _copy_from_store(record, draft)
        return
    try:
        _copy_through_master(session, str(record["uuid"]), draft)
    except MasterError as error:
        # A Determined 0.38.1 master does not use the keys of a config.
        if way == "master" or error.status < 500 or _section(record).get("type") in (None, *_LOCAL_TYPES):
            raise
        shutil.rmtree(draft, ignore_errors=True)
        try:
            _copy_from_store(record, draft)
        except (DetError, OSError) as second:
            raise CheckpointError(
                f"Checkpoint `{record['uuid']}` can be downloaded neither through the master ({error}) nor from its "
                f"storage ({second})."
            ) from second


def _section(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return ((record.get("training") or {}).get("experimentConfig") or {}).get("checkpoint_storage") or {}


def _copy_through_master(session: Session, uuid: str, draft: Path) -> None:
    import tarfile

    from det_keras.storage.archive import unpack_chunks

    draft.mkdir()
    try:
        unpack_chunks(session.api.checkpoints.archive(uuid), draft)
    except (tarfile.TarError, EOFError) as error:
        raise CheckpointError(f"The archive of checkpoint `{uuid}` is broken: {error}.") from error


def _copy_from_store(record: Mapping[str, Any], draft: Path) -> None:
    from det_keras import storage
    from det_keras.config.secrets import without_masked

    section = without_masked(_section(record))
    if not section:
        raise CheckpointError(f"The master does not say where checkpoint `{record['uuid']}` is stored.")
    with storage.from_config(section).restore_path(str(record["uuid"])) as directory:
        shutil.copytree(directory, draft)


def _check_target(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise DetError(f"{target} exists already. Name another directory, or remove it.")


def _verify(record: Mapping[str, Any], draft: Path) -> None:
    from det_keras.storage import manifest

    listed = {
        name: int(size) for name, size in (record.get("resources") or {}).items() if not name.endswith("/")
    }
    if manifest.MANIFEST_NAME in listed or (draft / manifest.MANIFEST_NAME).exists():
        manifest.verify_manifest(draft, ignored=_deleted(record, listed, draft / manifest.MANIFEST_NAME))
        return
    # A checkpoint of another program has no manifest; the master's record contains at least the sizes.
    for name, size_bytes in listed.items():
        path = draft / name
        if not path.is_file() or path.stat().st_size != size_bytes:
            raise CheckpointError(
                f"Checkpoint `{record['uuid']}` is corrupt: `{name}` is missing or does not have {size_bytes} bytes."
            )


def _deleted(record: Mapping[str, Any], listed: Mapping[str, int], path: Path) -> frozenset[str]:
    """Return the files that were deleted from this checkpoint."""
    if record["state"] != named(PARTIALLY_DELETED):
        return frozenset()
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
    return frozenset(name for name in names if name not in listed)


def _complete_metadata(record: Mapping[str, Any], draft: Path) -> None:
    path = draft / _METADATA_NAME
    if not path.exists():
        path.write_text(json.dumps(record.get("metadata") or {}, indent=2), encoding="utf-8")
