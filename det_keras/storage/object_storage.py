"""Stores checkpoints in an object store: what S3, GCS and Azure share.

The files of a checkpoint are objects below ``<prefix>/<uuid>/``. The manifest is the last object: without it the others
are no checkpoint. A marker below ``<prefix>/.uploads/`` names the process that writes a checkpoint. It is stored first
and deleted last, so that a later process of the same machine recognises what a dead one left.
"""

from __future__ import annotations

import abc
import contextlib
import importlib.util
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from det_keras.errors import CheckpointError, CheckpointMissingError, ConfigError, StorageError
from det_keras.scratch import Scratch, is_alive, machine_name
from det_keras.storage.base import CheckpointTarget, Orphan, Storage
from det_keras.storage.manifest import (
    DELETED_NAME,
    MANIFEST_NAME,
    deleted_names,
    read_manifest,
    verify_file,
    verify_manifest,
)
from det_keras.storage.names import (
    checkpoint_name,
    is_checkpoint_name,
    is_relative,
    matching_files,
    relative_name,
)
from det_keras.storage.object_client import ObjectClient, StoredObject, UnfinishedUpload
from det_keras.storage.object_restore import fetch_files
from det_keras.storage.object_upload import ObjectUpload
from det_keras.storage.requests import MissingObjectError, Requests

logger = logging.getLogger(__name__)

_UPLOADS = ".uploads/"
# A new connection reads credentials and shakes hands, so each process keeps those that it opened.
_open: dict[tuple[object, ...], Requests] = {}
_opening = threading.Lock()
# Stores in which this process has looked for what dead processes left.
_tidied: set[tuple[object, ...]] = set()


class ObjectStorage(Storage):
    """Stores checkpoints as objects of one bucket.

    Args:
        prefix: path inside of the bucket; None for the bucket itself.

    Raises:
        ConfigError: the package for this kind of store is not installed.
    """

    extra: ClassVar[str]
    module: ClassVar[str]

    def __init__(self, prefix: str | None, *options: str | None) -> None:
        if importlib.util.find_spec(self.module) is None:
            raise ConfigError.at(
                "checkpoint_storage.type",
                f"{self.extra!r} requires the package `{self.module}`: `pip install 'det_keras[{self.extra}]'`.",
            )
        path = (prefix or "").strip("/")
        self._root = f"{path}/" if path else ""
        self._options = options

    @abc.abstractmethod
    def _client(self) -> ObjectClient:
        """Open a client for the options of this storage."""

    @contextmanager
    def store_path(self, uuid: str, hashes: Mapping[str, str] | None = None) -> Iterator[Path]:
        with _temporary(uuid) as directory:
            yield directory
            with self._uploading(uuid) as upload:
                upload.add_directory(directory)

    @contextmanager
    def store_streams(self, uuid: str) -> Iterator[CheckpointTarget]:
        with self._uploading(uuid) as upload:
            yield upload

    @contextmanager
    def restore_path(self, uuid: str) -> Iterator[Path]:
        with _temporary(uuid) as directory:
            (directory / MANIFEST_NAME).write_bytes(self.manifest(uuid))
            manifest = read_manifest(directory)
            self._fetch_deleted_names(uuid, directory)
            self._fetch_verified(uuid, manifest, directory)
            yield directory

    @contextmanager
    def raw_path(self, uuid: str) -> Iterator[Path]:
        stored = self._files(uuid)
        if not stored:
            raise self._missing(uuid)
        folder = self._folder(uuid)
        with _temporary(uuid) as directory:
            files = {name: (folder + name, entry.size_bytes) for name, entry in stored.items()}
            fetch_files(self._requests(), files, directory)
            yield directory

    def exists(self, uuid: str) -> bool:
        key = self._folder(uuid) + MANIFEST_NAME
        return key in self._list(key)

    def checkpoints(self) -> list[str]:
        names = (key.removeprefix(self._root).split("/") for key in self._list(self._root))
        found = (parts[0] for parts in names if len(parts) == 2 and parts[1] == MANIFEST_NAME)
        return sorted(name for name in found if is_checkpoint_name(name))

    def location(self, uuid: str) -> str:
        return f"{self._requests().client.location}/{self._folder(uuid).rstrip('/')}"

    def manifest(self, uuid: str) -> bytes:
        requests, key = self._requests(), self._folder(uuid) + MANIFEST_NAME
        try:
            return requests.call(key, lambda: requests.client.get(key))
        except MissingObjectError as error:
            raise self._missing(uuid) from error

    def list_files(self, uuid: str) -> dict[str, int]:
        stored = self._files(uuid)
        found = {name: entry.size_bytes for name, entry in stored.items() if name != DELETED_NAME}
        for name in list(found):
            # A store knows no directories; the contract lists them.
            parents = PurePosixPath(name).parents
            found.update((f"{parent}/", 0) for parent in parents if str(parent) != ".")
        return dict(sorted(found.items()))

    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        folder, stored = self._folder(uuid), self._stored(uuid)
        selected = _selected(stored, globs)
        if not stored.keys() - selected - {MANIFEST_NAME, DELETED_NAME} or stored.keys() <= selected:
            with self._marked(uuid) as leave_marker:
                leave_marker.append(uuid)
                self._remove(uuid, stored)
                leave_marker.clear()
            return {}
        requests = self._requests()
        with tempfile.TemporaryDirectory() as scratch:
            self._fetch_deleted_names(uuid, Path(scratch))
            names = deleted_names(Path(scratch)) | selected
        # Stored before the files are deleted: an unlisted missing file would make the checkpoint corrupt.
        key, content = folder + DELETED_NAME, "\n".join(sorted(names)).encode()
        requests.call(key, lambda: requests.client.put(key, content))
        self._delete_keys([folder + name for name in sorted(selected)])
        return self.list_files(uuid)

    def find_orphans(self, min_age_s: float) -> list[Orphan]:
        # Only what has a marker: other programs may store checkpoints in the same bucket, which have no manifest.
        requests = self._requests()
        found = []
        for key, marker in self._list(self._root + _UPLOADS).items():
            uuid, pid = _parse_marker(key.removeprefix(self._root + _UPLOADS))
            if not is_checkpoint_name(uuid) or (pid is not None and is_alive(pid)):
                continue
            stored, unfinished = self._stored(uuid), self._unfinished(uuid)
            times = [entry.modified for entry in (marker, *stored.values())]
            times += [upload.started for upload in unfinished]
            age_s = max(0.0, time.time() - max(known for known in times if known is not None))
            if pid is None and age_s < min_age_s:
                continue
            is_complete = MANIFEST_NAME in stored
            size_bytes = 0 if is_complete else sum(entry.size_bytes for entry in stored.values())
            found.append(Orphan(f"{requests.client.location}/{self._root}{uuid}/", uuid, size_bytes, age_s))
        return found

    def remove_orphan(self, orphan: Orphan) -> None:
        uuid = checkpoint_name(orphan.uuid)
        logger.info("Removing an unfinished checkpoint at %s.", orphan.name)
        for upload in self._unfinished(uuid):
            self._abort(upload)
        # Listed after the uploads were ended: one may have been completed meanwhile.
        stored = self._stored(uuid)
        if MANIFEST_NAME not in stored:
            folder = self._folder(uuid)
            self._delete_keys([folder + name for name in stored])
        # The marker last: a removal that is interrupted is found again.
        markers = [key for key in self._list(self._root + _UPLOADS) if key.endswith(f"~{uuid}")]
        self._delete_keys(markers)

    def store_file(self, name: str, source: Path) -> None:
        # Put in one request, so that a reader sees either the old file or the complete new one.
        key, content = self._root + relative_name(name), source.read_bytes()
        requests = self._requests()
        requests.call(key, lambda: requests.client.put(key, content))

    def read_file(self, name: str) -> bytes:
        key, requests = self._root + relative_name(name), self._requests()
        return requests.call(key, lambda: requests.client.get(key))

    def mirror_files(self, prefix: str, target: Path) -> bool:
        folder = f"{self._root}{relative_name(prefix)}/"
        stored = self._list(folder)
        target.mkdir(parents=True, exist_ok=True)
        versions = target / ".versions.json"
        try:
            known = json.loads(versions.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            known = {}
        changed = {
            key.removeprefix(folder): (key, entry.size_bytes)
            for key, entry in stored.items()
            if known.get(key) != entry.version and not key.endswith("/")
        }
        fetch_files(self._requests(), changed, target)
        versions.write_text(json.dumps({key: entry.version for key, entry in stored.items()}))
        return bool(stored)

    def delete_files(self, prefix: str) -> None:
        self._delete_keys(list(self._list(f"{self._root}{relative_name(prefix)}/")))

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @contextmanager
    def _uploading(self, uuid: str) -> Iterator[ObjectUpload]:
        """Yield an upload that is completed at the end of the block; if that fails, nothing of it remains."""
        folder, requests = self._folder(uuid), self._requests()
        self._remove_stale()
        client = requests.client
        if self.exists(uuid):
            raise FileExistsError(f"Checkpoint `{uuid}` is already stored at {client.location}/{folder}.")
        with self._marked(uuid) as leave_marker:
            upload = ObjectUpload(requests, folder)
            try:
                yield upload
                upload.finish()
            except BaseException:
                try:
                    upload.abandon()
                    self._remove(uuid, self._stored(uuid))
                except OSError as error:
                    logger.warning("An unfinished checkpoint cannot be removed now: %s", error)
                    leave_marker.append(uuid)
                raise

    @contextmanager
    def _marked(self, uuid: str) -> Iterator[list[str]]:
        """Mark a checkpoint as being written or deleted; a non-empty list at the end leaves the marker."""
        requests = self._requests()
        marker = f"{self._root}{_UPLOADS}{machine_name()}~{os.getpid()}~{checkpoint_name(uuid)}"
        requests.call(marker, lambda: requests.client.put(marker, b""))
        leave_marker: list[str] = []
        try:
            yield leave_marker
        finally:
            if not leave_marker:
                with contextlib.suppress(OSError):
                    self._delete_keys([marker])

    def _remove_stale(self) -> None:
        """Remove what dead processes of this machine left, once per process."""
        place = (type(self), self._options, self._root, os.getpid())
        if place in _tidied:
            return
        _tidied.add(place)
        try:
            for orphan in self.find_orphans(float("inf")):
                self.remove_orphan(orphan)
        except StorageError as error:
            logger.warning("Unfinished checkpoints could not be removed: %s", error)

    def _fetch_verified(self, uuid: str, manifest: Mapping[str, Any], directory: Path) -> None:
        folder, ignored = self._folder(uuid), deleted_names(directory)
        files = {
            name: (folder + name, int(entry["size"]))
            for name, entry in manifest["files"].items()
            if name not in ignored and relative_name(name)
        }
        # Compared before anything is fetched: what is missing or short is known by one request.
        stored = self._stored(uuid)
        for name, (_, size_bytes) in files.items():
            entry = stored.get(name)
            if entry is None:
                raise CheckpointError(f"Checkpoint `{uuid}` is corrupt: `{name}` is missing.")
            if entry.size_bytes != size_bytes:
                raise CheckpointError(
                    f"Checkpoint `{uuid}` is corrupt: `{name}` has {entry.size_bytes} bytes, "
                    f"its manifest says {size_bytes}."
                )
        fetch_files(self._requests(), files, directory)
        for name in manifest.get("directories", ()):
            (directory / relative_name(name)).mkdir(parents=True, exist_ok=True)
        try:
            verify_manifest(directory, ignored=ignored)
        except CheckpointError as error:
            # Once more: the content may have changed on its way here and not in the store.
            logger.warning("%s It is fetched once more.", error)
            for name, (key, size_bytes) in files.items():
                sha256 = manifest["files"][name]["sha256"]
                with contextlib.suppress(CheckpointError):
                    verify_file(directory, name, size_bytes, sha256)
                    continue
                fetch_files(self._requests(), {name: (key, size_bytes)}, directory)
            verify_manifest(directory, ignored=ignored)

    def _fetch_deleted_names(self, uuid: str, directory: Path) -> None:
        key, requests = self._folder(uuid) + DELETED_NAME, self._requests()
        if key in self._list(key):
            content = requests.call(key, lambda: requests.client.get(key))
            (directory / DELETED_NAME).write_bytes(content)

    def _remove(self, uuid: str, stored: Mapping[str, StoredObject]) -> None:
        # The manifest first: a half-deleted checkpoint is none.
        folder = self._folder(uuid)
        if MANIFEST_NAME in stored:
            self._delete_keys([folder + MANIFEST_NAME])
        self._delete_keys([folder + name for name in stored if name != MANIFEST_NAME])

    def _unfinished(self, uuid: str) -> list[UnfinishedUpload]:
        folder, requests = self._folder(uuid), self._requests()
        return requests.call(folder, lambda: requests.client.unfinished(folder))

    def _abort(self, upload: UnfinishedUpload) -> None:
        requests = self._requests()
        requests.call(upload.key, lambda: requests.client.abort(upload.key, upload.upload_id))

    def _delete_keys(self, keys: Sequence[str]) -> None:
        if keys:
            requests = self._requests()
            requests.call(keys[0], lambda: requests.client.delete(keys))

    def _list(self, prefix: str) -> Mapping[str, StoredObject]:
        requests = self._requests()
        return requests.call(prefix, lambda: requests.client.list(prefix))

    def _stored(self, uuid: str) -> dict[str, StoredObject]:
        folder = self._folder(uuid)
        return {key.removeprefix(folder): entry for key, entry in self._list(folder).items()}

    def _files(self, uuid: str) -> dict[str, StoredObject]:
        """Return the stored files; other clients store empty objects for directories besides."""
        return {name: entry for name, entry in self._stored(uuid).items() if not name.endswith("/") and name}

    def _folder(self, uuid: str) -> str:
        return f"{self._root}{checkpoint_name(uuid)}/"

    def _missing(self, uuid: str) -> CheckpointError:
        place = f"{self._requests().client.location}/{self._root}"
        if self._stored(uuid):
            return CheckpointError(f"Checkpoint `{uuid}` has no manifest in {place}: it was never completed.")
        return CheckpointMissingError(f"There is no checkpoint `{uuid}` in {place}.")

    def _requests(self) -> Requests:
        # A forked process has neither the loop nor the connections of its parent.
        place = (type(self), self._options, os.getpid())
        with _opening:
            found = _open.get(place)
            if found is None or found.is_expired:
                try:
                    found = _open[place] = Requests(self._client())
                except ValueError as error:
                    raise StorageError(
                        f"The storage `{self.extra}` cannot be opened: {error}. "
                        "Check the fields of `checkpoint_storage`.",
                        can_retry=False,
                    ) from error
            return found


def _parse_marker(name: str) -> tuple[str, int | None]:
    """Return the UUID in the name of a marker, and the process if it is one of this machine."""
    machine, _, rest = name.partition("~")
    pid, _, uuid = rest.partition("~")
    return uuid, int(pid) if machine == machine_name() and pid.isdigit() else None


@contextmanager
def _temporary(uuid: str) -> Iterator[Path]:
    """Yield a temporary directory named like the checkpoint, so that errors contain its UUID."""
    with Scratch("checkpoint") as name:
        directory = Path(name) / checkpoint_name(uuid)
        directory.mkdir()
        yield directory


def _selected(stored: Mapping[str, StoredObject], globs: Sequence[str]) -> set[str]:
    """Return the names that match, by the rules of directories."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in stored:
            if is_relative(name) and not name.endswith("/"):
                path = Path(scratch) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        selected = matching_files(Path(scratch), globs)
    # An object that is not a file of a checkpoint goes with all files.
    return selected | (stored.keys() if "**/*" in globs else set())
