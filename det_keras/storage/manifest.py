"""The manifest of a checkpoint.

``manifest.json`` is written last and lists every other file with its size and SHA-256. A directory
without a valid manifest is not a checkpoint. A single changed byte is found before anything is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from det_keras.errors import CheckpointError
from det_keras.files import fsync_directory

MANIFEST_NAME = "manifest.json"
#: Lists the files that were deleted on purpose; without them a checkpoint is not corrupt.
DELETED_NAME = ".deleted"
_CHUNK_BYTES = 1 << 22
_HASHING_THREADS = 4


def list_files(directory: Path) -> dict[str, int]:
    """Return every relative path below `directory` with its size in bytes.

    Directories end with ``/`` and have 0 bytes, as in the REST API.
    """
    found: dict[str, int] = {}
    _add_files(found, directory, "")
    return found


def write_manifest(directory: Path, hashes: Mapping[str, str] | None = None) -> dict[str, int]:
    """Flush every file of `directory` to the disk and write its manifest.

    Args:
        directory: the checkpoint.
        hashes: SHA-256 in hexadecimal, by relative path, of files that were hashed as they were written and are flushed
            already; the other files are read.

    Returns:
        All files with their sizes in bytes, including the manifest; directories as in `list_files`.

    Raises:
        OSError: the disk is full or failing; the manifest is then not valid.
    """
    # Every file is flushed before the manifest is written: a valid manifest on the disk means complete files.
    known = hashes or {}
    files = {}
    listed = list_files(directory)
    for name, size_bytes in listed.items():
        if name.endswith("/"):
            fsync_directory(directory / name)
        elif name != MANIFEST_NAME:
            if name not in known:
                _flush(directory / name)
            files[name] = {"size": size_bytes, "sha256": known.get(name) or hash_file(directory / name)}
    target = directory / MANIFEST_NAME
    with target.open("wb") as file:
        file.write(manifest_content(files))
        file.flush()
        os.fsync(file.fileno())
    fsync_directory(directory)
    listed[MANIFEST_NAME] = target.stat().st_size
    return listed


def manifest_content(files: Mapping[str, Mapping[str, object]], directories: Sequence[str] = ()) -> bytes:
    """Return the content of a manifest.

    Args:
        files: relative path -> `size` in bytes and `sha256` in hexadecimal.
        directories: relative paths of empty directories, for storages that know only files.
    """
    more = {"directories": sorted(directories)} if directories else {}
    return json.dumps({"version": 1, "files": files, **more}, indent=1).encode()


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint.

    Raises:
        CheckpointError: there is no manifest, or it is not valid.
    """
    manifest = directory / MANIFEST_NAME
    try:
        found: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
        for entry in found["files"].values():
            int(entry["size"]), str(entry["sha256"])
    except FileNotFoundError:
        raise CheckpointError(
            f"Checkpoint `{directory.name}` has no manifest at {manifest}: it was never completed."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        raise CheckpointError(
            f"Checkpoint `{directory.name}` is corrupt: {manifest} cannot be read."
        ) from None
    return found


def deleted_names(directory: Path) -> frozenset[str]:
    """Return the files of a checkpoint that were deleted on purpose."""
    try:
        return frozenset((directory / DELETED_NAME).read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return frozenset()


def verify_manifest(directory: Path, *, ignored: frozenset[str] = frozenset()) -> None:
    """Check every file of a checkpoint against its manifest.

    Args:
        directory: the checkpoint.
        ignored: files that may be missing because they were deleted on purpose.

    Raises:
        CheckpointError: there is no manifest, or a file is missing, cut off or altered; names the first such file.
    """
    files = read_manifest(directory)["files"]
    # Hashing releases the GIL, so several threads use several cores.
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        checks = [
            pool.submit(verify_file, directory, name, entry["size"], entry["sha256"])
            for name, entry in files.items()
            if name not in ignored
        ]
        for check in checks:
            check.result()


def verify_file(directory: Path, name: str, size_bytes: int, sha256: str) -> None:
    """Check one file of a checkpoint.

    Raises:
        CheckpointError: the file is missing, cut off or altered.
    """
    path = directory / name
    try:
        found_bytes = path.stat().st_size
    except OSError:
        raise CheckpointError(f"Checkpoint `{directory.name}` is corrupt: `{name}` is missing.") from None
    if found_bytes != size_bytes:
        raise CheckpointError(
            f"Checkpoint `{directory.name}` is corrupt: `{name}` has {found_bytes} bytes, "
            f"its manifest says {size_bytes}."
        )
    if hash_file(path) != sha256:
        raise CheckpointError(
            f"Checkpoint `{directory.name}` is corrupt: the content of `{name}` does not match its SHA-256."
        )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _add_files(found: dict[str, int], directory: Path, prefix: str) -> None:
    # Twenty times as fast as `Path.rglob`, and each checkpoint is listed several times.
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = f"{prefix}{entry.name}"
            if not entry.is_dir():
                found[name] = entry.stat().st_size
                continue
            found[f"{name}/"] = 0
            if not entry.is_symlink():
                _add_files(found, directory / entry.name, f"{name}/")


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
