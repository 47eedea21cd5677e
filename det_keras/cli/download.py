"""Downloads a checkpoint's files into a directory of the user.

A target directory appears complete and verified, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.connection.checkpoint_files import fetch
from det_keras.errors import CheckpointError, DetError
from det_keras.protocol.states import COMPLETED, PARTIALLY_DELETED, bare, named

if TYPE_CHECKING:
    from det_keras.client import Session
from det_keras.protocol.metrics import best_first

_DOWNLOADABLE = (named(COMPLETED), named(PARTIALLY_DELETED))
# The storage's own list of files that were deleted from a checkpoint.
_DELETED_NAMES = ".deleted"
_METADATA_NAME = "metadata.json"


def fetch_checkpoint(session: Session, uuid: str) -> dict[str, Any]:
    """Return the record of a checkpoint."""
    return session.api.checkpoints.get(uuid)


def default_target(uuid: str) -> Path:
    """Return the default target directory of a checkpoint."""
    return Path("checkpoints") / uuid


def best_checkpoints_first(checkpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return checkpoints by the searcher's metric, best first; those without the metric are last, newest first."""
    searchers = ((one["training"].get("experimentConfig") or {}).get("searcher") or {} for one in checkpoints)
    smaller = next(
        (searcher["smaller_is_better"] for searcher in searchers if "smaller_is_better" in searcher), True
    )
    return best_first(
        checkpoints,
        lambda checkpoint: checkpoint["training"].get("searcherMetric"),
        smaller_is_better=bool(smaller),
        otherwise=lambda checkpoint: -int((checkpoint.get("metadata") or {}).get("steps_completed") or 0),
    )


def download(session: Session, record: Mapping[str, Any], target: Path, *, way: str = "auto") -> Path:
    """Write the files of a checkpoint to `target`; return its absolute path.

    Args:
        session: of the master that has the checkpoint.
        record: the checkpoint.
        target: must not exist, or must be empty.
        way: where the files come from; see `checkpoint_files.fetch`.

    Raises:
        CheckpointError: the checkpoint was deleted or is corrupt; `target` is not changed.
        DetError: `target` exists and is not an empty directory.
    """
    # Imported here: `det --help` does not need it.
    import tempfile

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


def _check_target(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise DetError(f"{target} exists already. Name another directory with -o, or remove it.")


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
