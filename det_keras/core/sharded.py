"""Joins the files of several workers to one checkpoint, and detects conflicts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from det_keras.storage.manifest import hash_file

#: Relative path -> (size in bytes, SHA-256) of a file; (0, "") of a directory, whose path ends with ``/``.
Listing = dict[str, tuple[int, str]]


def list_shard(directory: Path, selector: Callable[[str], bool] | None = None) -> Listing:
    """Return the files of one worker's shard.

    Args:
        directory: the files.
        selector: returns whether to include a relative path; directories end with ``/``. A directory that it excludes
            may still be created for a file that it includes.
    """
    found: Listing = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix() + ("/" if path.is_dir() else "")
        if selector is None or selector(name):
            found[name] = (0, "") if path.is_dir() else (path.stat().st_size, hash_file(path))
    return found


def join_files(shards: Sequence[Listing]) -> list[Listing]:
    """Return the files that each rank stores; a file of several ranks is stored by the lowest rank.

    Args:
        shards: files by rank.

    Raises:
        RuntimeError: a path has different content on different ranks, or is a file on one and a directory on another.
    """
    owners: dict[str, list[int]] = {}
    for rank, shard in enumerate(shards):
        for name in shard:
            owners.setdefault(name, []).append(rank)
    conflicts = {
        name: ranks for name, ranks in owners.items() if len({shards[rank][name] for rank in ranks}) > 1
    }
    for name, ranks in owners.items():
        for above in (f"{parent.as_posix()}" for parent in Path(name).parents if parent.as_posix() != "."):
            if above in owners:
                conflicts[above] = sorted({*owners[above], *ranks})
    _refuse("files", conflicts)
    return [
        {name: entry for name, entry in shard.items() if owners[name][0] == rank}
        for rank, shard in enumerate(shards)
    ]


def join_metadata(parts: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return the joined metadata of all ranks; dicts are joined key by key.

    Args:
        parts: metadata by rank; None for a rank without metadata.

    Raises:
        RuntimeError: a key has different values on different ranks.
    """
    joined: dict[str, Any] = {}
    owners: dict[str, list[int]] = {}
    conflicts: dict[str, list[int]] = {}
    for rank, part in enumerate(parts):
        _join(joined, part or {}, rank, owners, conflicts, "")
    _refuse("metadata", conflicts)
    return joined


def copy_files(source: Path, names: Sequence[str], target: Path) -> None:
    """Copy files to the same relative paths below another directory, creating directories as needed.

    Args:
        source: the directory to copy from.
        names: relative paths; directories end with ``/``.
        target: the directory to copy to.
    """
    for name in names:
        destination = target / name
        if name.endswith("/"):
            destination.mkdir(parents=True, exist_ok=True)
            continue
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, destination)


def _join(
    joined: dict[str, Any],
    part: Mapping[str, Any],
    rank: int,
    owners: dict[str, list[int]],
    conflicts: dict[str, list[int]],
    prefix: str,
) -> None:
    for key, value in part.items():
        path = f"{prefix}{key}"
        owners.setdefault(path, []).append(rank)
        if key not in joined:
            joined[key] = {} if isinstance(value, Mapping) else value
        if isinstance(value, Mapping) and isinstance(joined[key], dict):
            _join(joined[key], value, rank, owners, conflicts, f"{path}/")
        elif joined[key] != value:
            conflicts[path] = owners[path]


def _refuse(what: str, conflicts: Mapping[str, Sequence[int]]) -> None:
    if conflicts:
        lines = "\n".join(f"    {name}: ranks {list(ranks)}" for name, ranks in sorted(conflicts.items()))
        raise RuntimeError(
            f"The ranks do not agree on the {what} of a checkpoint, which is not stored:\n{lines}"
        )
