"""Checkpoints: stores files of a directory as a committed and reported checkpoint, and restores them."""

from __future__ import annotations

import enum
import json
import os
import uuid as uuid_module
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from det_keras.core.backend.base import Backend, CheckpointRecord
from det_keras.core.distributed import DistributedContext
from det_keras.core.file_plan import FilePlan
from det_keras.core.sharded import Listing, copy_files, join_files, join_metadata, list_shard
from det_keras.errors import CheckpointError, DetError
from det_keras.protocol.origin import METADATA_NAME, with_origin
from det_keras.scratch import Scratch
from det_keras.storage import Storage
from det_keras.storage.manifest import MANIFEST_NAME

Selector = Callable[[str], bool]


class DownloadMode(enum.Enum):
    """Whether the workers of a machine share one copy of a checkpoint.

    Attributes:
        LocalWorkersShareDownload: the first worker of each machine fetches it; all workers call in step.
        NoSharedDownload: each worker fetches its own copy, at any time.
    """

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Stores checkpoints and reports them.

    Args:
        storage: stores the files.
        backend: receives the reports.
        distributed: the workers.
        origin: the cluster and the allocation that write the checkpoints; None outside of a cluster.
    """

    def __init__(
        self,
        storage: Storage,
        backend: Backend,
        distributed: DistributedContext | None = None,
        origin: Mapping[str, str] | None = None,
    ) -> None:
        self.storage = storage
        # Committed together with the files. If this process is killed before the report, the master knows by it that
        # the checkpoint is one of its own that will not be reported any more.
        self._origin = origin
        self._backend = backend
        self._distributed = distributed or DistributedContext()

    @contextmanager
    def store_path(
        self, metadata: Mapping[str, object] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Yield an empty directory and a new UUID; at the end of the block they become a checkpoint.

        Args:
            metadata: JSON values, with ``steps_completed`` (batches trained so far); written as
                ``metadata.json`` and reported.
            shard: every worker calls, each with its own directory, and the checkpoint contains the files of all, as in
                `upload`. Without it only the chief may call.

        Raises:
            ValueError: ``steps_completed`` is missing or not an integer.
            RuntimeError: a rank other than the chief calls without `shard`, or shards conflict.
            OSError: the storage cannot be written; nothing of the checkpoint remains.
        """
        if shard and self._distributed.size > 1:
            uuid = self._distributed.broadcast(str(uuid_module.uuid4()))
            with Scratch("shard") as folder:
                yield Path(folder), uuid
                self._store_shards(uuid, Path(folder), metadata, None)
            return
        self._check_chief("store_path")
        content = self._document(metadata or {})
        uuid = str(uuid_module.uuid4())
        with self.storage.store_path(uuid) as directory:
            yield directory, uuid
            (directory / METADATA_NAME).write_bytes(content)
        self.report(uuid, metadata or {})

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: Mapping[str, object] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Store the files of a directory as a new checkpoint and return its UUID.

        Args:
            ckpt_dir: the files, which are not changed; None for a worker without files, with `shard`.
            metadata: JSON values, with ``steps_completed`` (batches trained so far) on at least one rank.
            shard: every worker calls, and the checkpoint contains the files and the metadata of all. A file may come
                from several ranks if it is the same on each. Without it only the chief may call.
            selector: returns whether to store a path, which is relative to `ckpt_dir`; directories end with ``/``.

        Raises:
            ValueError: ``steps_completed`` is missing or not an integer, or there is no directory.
            RuntimeError: a rank other than the chief calls without `shard`, or ranks have different files of one name
                or different values of one key; then nothing is stored, and every rank raises.
            OSError: the storage cannot be written; nothing of the checkpoint remains.
        """
        source = None if ckpt_dir is None else Path(ckpt_dir)
        if shard and self._distributed.size > 1:
            uuid: str = self._distributed.broadcast(str(uuid_module.uuid4()))
            self._store_shards(uuid, source, metadata, selector)
            return uuid
        self._check_chief("upload")
        if source is None:
            raise ValueError(
                "`upload` requires a directory; None is only for workers without files, with `shard=True`."
            )
        with self.store_path(metadata) as (directory, uuid):
            copy_files(source, list(list_shard(_existing(source), selector)), directory)
        return uuid

    @contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Yield a directory with the verified files of a checkpoint; do not write to it.

        Args:
            storage_id: UUID of the checkpoint.
            download_mode: whether the workers of a machine share the directory, and call in step.
            selector: returns whether to include a relative path; None for all.

        Raises:
            CheckpointError: the checkpoint does not exist or is corrupt.
        """
        if download_mode is DownloadMode.NoSharedDownload or self._distributed.local_size == 1:
            with self._open(storage_id, selector) as directory:
                yield directory
            return
        with ExitStack() as stack:
            directory = self._on_local_chief(lambda: stack.enter_context(self._open(storage_id, selector)))
            try:
                yield directory
            finally:
                # The files may be a temporary copy, deleted when the local chief leaves its block. It leaves only after
                # all workers of the machine have reached this call.
                self._distributed.allgather_local(None)

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy the verified files of a checkpoint to a directory, created if it does not exist.

        Args:
            storage_id: UUID of the checkpoint.
            ckpt_dir: the target directory.
            download_mode: whether one worker of each machine copies for all workers, which call in step.
            selector: returns whether to copy a relative path; None for all.

        Raises:
            CheckpointError: the checkpoint does not exist or is corrupt.
        """

        def fetch() -> None:
            target = Path(ckpt_dir)
            target.mkdir(parents=True, exist_ok=True)
            with self.storage.restore_path(storage_id) as directory:
                names = [name for name in list_shard(directory, selector) if name != MANIFEST_NAME]
                copy_files(directory, names, target)

        if download_mode is DownloadMode.NoSharedDownload or self._distributed.local_size == 1:
            fetch()
        else:
            self._on_local_chief(fetch)

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """Return the current metadata of a checkpoint; in a trial, the metadata stored by the master.

        Raises:
            DetError: the checkpoint does not exist.
        """
        try:
            return self._backend.checkpoint_metadata(storage_id)
        except CheckpointError:
            with self.storage.raw_path(storage_id) as directory:
                found: dict[str, Any] = json.loads((directory / METADATA_NAME).read_text(encoding="utf-8"))
            return found

    def delete(self, storage_id: str) -> None:
        """Delete the files of a checkpoint and report it; deleting a deleted checkpoint is not an error."""
        self.storage.delete(storage_id)
        self._backend.report_checkpoint_deleted(storage_id)

    def with_metadata(self, plan: FilePlan, metadata: Mapping[str, object]) -> FilePlan:
        """Return `plan` with the checkpoint's ``metadata.json``; raises as `store_path` does."""
        return replace(plan, files={**plan.files, METADATA_NAME: (self._document(metadata),)})

    def report(self, uuid: str, metadata: Mapping[str, Any]) -> None:
        """Report a committed checkpoint."""
        resources = self.storage.list_files(uuid)
        record = CheckpointRecord(uuid, metadata["steps_completed"], resources, dict(metadata))
        self._backend.report_checkpoint(record)

    def _store_shards(
        self, uuid: str, source: Path | None, metadata: Mapping[str, object] | None, selector: Selector | None
    ) -> None:
        listing: Listing = {}
        problem: Exception | None = None
        try:
            listing = {} if source is None else list_shard(_existing(source), selector)
        except Exception as error:
            # Raised only after the exchange, in which the other ranks wait and receive the failure.
            problem = error
        said = f"rank {self._distributed.rank}: {problem}" if problem is not None else None
        gathered = self._distributed.allgather((listing, dict(metadata) if metadata else None, said))
        if problem is not None:
            raise problem
        self._refuse(uuid, [reported for _, _, reported in gathered])
        # Every rank joins the same gathered listings, so all ranks get the same result without another exchange.
        shares = join_files([files for files, _, _ in gathered])
        joined = join_metadata([part for _, part, _ in gathered])
        content = self._document(joined)
        own = list(shares[self._distributed.rank])
        with ExitStack() as stack:
            opened = self._distributed.on_chief(
                lambda: _translated(lambda: stack.enter_context(self.storage.store_path(uuid)))
            )
            failure = None
            try:
                if source is not None:
                    copy_files(source, own, opened)
                if self._distributed.is_chief:
                    (opened / METADATA_NAME).write_bytes(content)
            except OSError as error:
                failure = f"rank {self._distributed.rank}: {error}"
            self._refuse(uuid, self._distributed.allgather(failure))
            self._distributed.on_chief(lambda: _translated(stack.close))
        if self._distributed.is_chief:
            self.report(uuid, joined)

    def _refuse(self, uuid: str, said: Sequence[str | None]) -> None:
        problems = [problem for problem in said if problem is not None]
        if problems:
            raise CheckpointError(f"Checkpoint `{uuid}` could not be written: {'; '.join(problems)}.")

    def _document(self, metadata: Mapping[str, object]) -> bytes:
        """Check metadata, and return the content of ``metadata.json``."""
        steps_completed = metadata.get("steps_completed")
        if isinstance(steps_completed, bool) or not isinstance(steps_completed, int):
            raise ValueError(
                "A checkpoint's metadata requires `steps_completed`, the batches trained so far, as an integer. "
                f"Received: {steps_completed!r}."
            )
        return json.dumps(with_origin(metadata, self._origin), indent=1).encode()

    @contextmanager
    def _open(self, uuid: str, selector: Selector | None) -> Iterator[Path]:
        with self.storage.restore_path(uuid) as directory:
            if selector is None:
                yield directory
                return
            with Scratch("restore") as folder:
                names = [name for name in list_shard(directory, selector) if name != MANIFEST_NAME]
                copy_files(directory, names, Path(folder))
                yield Path(folder)

    def _on_local_chief(self, work: Callable[[], Any]) -> Any:
        result: Any = None
        error: Exception | None = None
        if self._distributed.is_local_chief:
            try:
                result = work()
            except (DetError, OSError) as failure:
                error = failure
        result, said = self._distributed.broadcast_local((result, str(error) if error is not None else None))
        if error is not None:
            raise error
        if said is not None:
            raise CheckpointError(said)
        return result

    def _check_chief(self, call: str) -> None:
        if not self._distributed.is_chief:
            raise RuntimeError(
                f"Rank {self._distributed.rank} called `{call}` without `shard=True`, which only the chief may. "
                "Call it on rank 0, or with `shard=True` on every rank."
            )


def _translated(work: Callable[[], Any]) -> Any:
    """Run an operation on the storage, and convert its failure to a DetError, which other ranks receive."""
    try:
        return work()
    except OSError as error:
        raise CheckpointError(f"The checkpoint could not be written: {error}.") from error


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        raise ValueError(f"There is no directory {str(directory)!r} to store as a checkpoint.")
    return directory
