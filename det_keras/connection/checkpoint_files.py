"""Gets the files of a checkpoint that a master lists: from its storage, or through the master."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.errors import CheckpointError, ConfigError, DetError, MasterError

if TYPE_CHECKING:
    from det_keras.client import Session

_LOCAL_TYPES = ("directory", "shared_fs")
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
