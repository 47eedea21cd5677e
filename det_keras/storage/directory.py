"""Stores checkpoints in a directory of this machine: one sub-directory per UUID, committed by rename."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from det_keras.errors import CheckpointMissingError, ConfigError
from det_keras.files import fsync_directory, replacing
from det_keras.scratch import is_alive, machine_name
from det_keras.storage.base import Orphan, Storage
from det_keras.storage.manifest import (
    DELETED_NAME,
    MANIFEST_NAME,
    deleted_names,
    list_files,
    verify_manifest,
    write_manifest,
)
from det_keras.storage.names import (
    checkpoint_name,
    is_checkpoint_name,
    matching_files,
    relative_name,
)

logger = logging.getLogger(__name__)

_STAGING_PREFIX = ".staging-"
_EVERYTHING = ("**/*",)
# Where a container of a Determined cluster finds the `host_path` of a `shared_fs` storage.
_CONTAINER_MOUNT = Path("/determined_shared_fs")
_MOUNTS = Path("/proc/self/mountinfo")
# Place of the mount point among the fields of a line.
_MOUNT_POINT = 4


class DirectoryStorage(Storage):
    """Stores checkpoints as directories below `root`.

    Args:
        root: the directory; created when the first checkpoint is stored.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._has_removed_stale = False

    def obstacle(self) -> str | None:
        """Return what is in the way of the directory on this machine, in words; None if it exists or can be made."""
        for path in (self.root, *self.root.parents):
            if path.is_dir():
                return None
            if path.is_symlink() and not path.exists():
                return f"{path} is a link to {path.readlink()}, which does not exist"
            if path.exists():
                return f"{path} is not a directory"
        return None

    @contextmanager
    def store_path(self, uuid: str, hashes: Mapping[str, str] | None = None) -> Iterator[Path]:
        target = self._directory(uuid)
        self.root.mkdir(parents=True, exist_ok=True)
        self._remove_stale_staging()
        staging = self.root / f"{_STAGING_PREFIX}{machine_name()}~{os.getpid()}~{uuid}"
        staging.mkdir()
        is_renamed = False
        try:
            yield staging
            write_manifest(staging, hashes)
            if target.exists():
                raise FileExistsError(f"Checkpoint `{uuid}` is already stored at {target}.")
            # The manifest and all files are on the disk, so a reader finds either no `target` or all of it. A crash
            # before the rename leaves only the staging directory, which a later process removes.
            staging.rename(target)
            is_renamed = True
            fsync_directory(self.root)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            if is_renamed:
                # It is unknown whether the rename is on the disk. The manifest is removed first: without it, a
                # directory that is only half removed is not a checkpoint.
                with contextlib.suppress(OSError):
                    (target / MANIFEST_NAME).unlink()
                shutil.rmtree(target, ignore_errors=True)
            raise

    @contextmanager
    def restore_path(self, uuid: str) -> Iterator[Path]:
        with self.raw_path(uuid) as directory:
            verify_manifest(directory, ignored=deleted_names(directory))
            yield directory

    @contextmanager
    def raw_path(self, uuid: str) -> Iterator[Path]:
        directory = self._directory(uuid)
        if not directory.is_dir():
            raise CheckpointMissingError(f"There is no checkpoint `{uuid}` in {self.root}.")
        yield directory

    def exists(self, uuid: str) -> bool:
        return (self._directory(uuid) / MANIFEST_NAME).is_file()

    def checkpoints(self) -> list[str]:
        try:
            names = [entry.name for entry in os.scandir(self.root) if is_checkpoint_name(entry.name)]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if self.exists(name))

    def location(self, uuid: str) -> str:
        return str(self._directory(uuid))

    def manifest(self, uuid: str) -> bytes:
        try:
            return (self._directory(uuid) / MANIFEST_NAME).read_bytes()
        except FileNotFoundError as error:
            raise CheckpointMissingError(f"There is no checkpoint `{uuid}` in {self.root}.") from error

    def list_files(self, uuid: str) -> dict[str, int]:
        directory = self._directory(uuid)
        if not directory.is_dir():
            return {}
        return {name: size for name, size in list_files(directory).items() if name != DELETED_NAME}

    def delete(self, uuid: str, globs: Sequence[str] = _EVERYTHING) -> dict[str, int]:
        directory = self._directory(uuid)
        if not directory.is_dir():
            return {}
        everything = tuple(globs) == _EVERYTHING
        selected = set() if everything else matching_files(directory, globs)
        listed = {} if everything else list_files(directory)
        kept = [name for name in listed if not name.endswith("/") and name not in selected]
        if not [name for name in kept if name not in (MANIFEST_NAME, DELETED_NAME)] or not kept:
            # The rename comes first: a half-deleted directory is never taken for a checkpoint. If this process is
            # killed in between, a later one removes the renamed directory like stale staging.
            trash = self.root / f"{_STAGING_PREFIX}{machine_name()}~{os.getpid()}~gone-{uuid}"
            directory.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)
            return {}
        # The list is written before the files are deleted: if this process is killed in between, the list names
        # files that still exist, which is harmless; an unlisted missing file would make the checkpoint corrupt.
        deleted = deleted_names(directory) | selected
        (directory / DELETED_NAME).write_text("\n".join(sorted(deleted)), encoding="utf-8")
        for name in selected:
            (directory / name).unlink(missing_ok=True)
        _remove_empty_directories(directory)
        return self.list_files(uuid)

    def store_file(self, name: str, source: Path) -> None:
        target = self._inside(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as content, replacing(target) as file:
            shutil.copyfileobj(content, file)

    def read_file(self, name: str) -> bytes:
        return self._inside(name).read_bytes()

    def mirror_files(self, prefix: str, target: Path) -> bool:
        source = self._inside(prefix)
        if not target.is_symlink():
            # A link to a directory that does not exist yet shows its files once they are written.
            target.symlink_to(source.absolute(), target_is_directory=True)
        return source.is_dir()

    def delete_files(self, prefix: str) -> None:
        shutil.rmtree(self._inside(prefix), ignore_errors=True)

    def find_orphans(self, min_age_s: float) -> list[Orphan]:
        found = []
        for path in sorted(self.root.glob(f"{_STAGING_PREFIX}*")):
            try:
                files = [entry.stat() for entry in (path, *path.rglob("*"))]
            except FileNotFoundError:
                # It was completed or removed in the meantime.
                continue
            age_s = time.time() - max(status.st_mtime for status in files)
            pid = _own_pid(path)
            is_abandoned = age_s >= min_age_s if pid is None else not is_alive(pid)
            if is_abandoned:
                found.append(
                    Orphan(str(path), path.name[-36:], sum(status.st_size for status in files), age_s)
                )
        return found

    def remove_orphan(self, orphan: Orphan) -> None:
        logger.info("Removing an unfinished checkpoint at %s.", orphan.name)
        shutil.rmtree(orphan.name, ignore_errors=True)

    def _inside(self, name: str) -> Path:
        return self.root / relative_name(name)

    def _directory(self, uuid: str) -> Path:
        return self.root / checkpoint_name(uuid)

    def _remove_stale_staging(self) -> None:
        """Remove the staging directories of processes of this machine that died while storing.

        Directories of living processes are left: they may still be written. The machine is part of the name because
        the process ids of another machine or container say nothing here.
        """
        if self._has_removed_stale:
            return
        self._has_removed_stale = True
        for path in self.root.glob(f"{_STAGING_PREFIX}{machine_name()}~*"):
            pid = _own_pid(path)
            if pid is not None and not is_alive(pid):
                logger.info("Removing an unfinished checkpoint that process %s left at %s.", pid, path)
                shutil.rmtree(path, ignore_errors=True)


def _own_pid(path: Path) -> int | None:
    """Return the process of this machine to which a staging directory belongs; None if it is another machine's."""
    machine, _, rest = path.name.removeprefix(_STAGING_PREFIX).partition("~")
    pid = rest.partition("~")[0] if machine == machine_name() else ""
    return int(pid) if pid.isdigit() else None


def _remove_empty_directories(directory: Path) -> None:
    for path in sorted((p for p in directory.rglob("*") if p.is_dir()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()


def container_mount() -> Path | None:
    """Return where this process finds the `host_path` of a `shared_fs` storage in a container; None outside one.

    The list of mounts is read: `Path.is_mount` does not see a directory that is mounted from the file system on which
    the container's own root is.
    """
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return _CONTAINER_MOUNT if _CONTAINER_MOUNT.is_mount() else None
    is_mounted = any(line.split(" ")[_MOUNT_POINT] == str(_CONTAINER_MOUNT) for line in lines)
    return _CONTAINER_MOUNT if is_mounted else None


class SharedFsStorage(DirectoryStorage):
    """Stores checkpoints below `host_path`, or below `storage_path` inside it.

    Args:
        host_path: absolute path of the mount point.
        storage_path: a directory inside `host_path`, relative or absolute.
        mount: where this process finds `host_path`, if it is mounted elsewhere; containers of a cluster do that.

    Raises:
        ConfigError: `storage_path` lies outside `host_path`.
    """

    def __init__(self, host_path: str, storage_path: str | None = None, mount: Path | None = None) -> None:
        base = Path(os.path.normpath(host_path))
        root = Path(os.path.normpath(base / (storage_path or "")))
        if root != base and base not in root.parents:
            raise ConfigError.at(
                "checkpoint_storage.storage_path", f"{storage_path!r} is not inside host_path {host_path!r}."
            )
        super().__init__(root if mount is None else mount / root.relative_to(base))
