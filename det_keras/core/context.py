"""`det.core.init()`: the framework-free seam between a training process and its cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from det_keras import storage
from det_keras.cluster_info import ClusterInfo, get_cluster_info
from det_keras.core.backend.alone import AloneBackend, RunDirectory
from det_keras.core.backend.base import Backend
from det_keras.core.backend.shared import SharedBackend
from det_keras.core.checkpoint import CheckpointContext
from det_keras.core.distributed import DistributedContext
from det_keras.core.preempt import PreemptContext
from det_keras.core.profiler import Profiler
from det_keras.core.train import TrainContext
from det_keras.home import Home

__all__ = ["Context", "init", "open_backend", "share_backend"]

logger = logging.getLogger(__name__)


class Context:
    """The parts that connect a training process with its cluster, or with a run directory.

    Attributes:
        info: where the process runs; None alone.
        train: reports metrics, progress and status.
        checkpoint: stores and restores checkpoints.
        preempt: tells when to stop.
        distributed: rank, size and small exchanges.
        backend: where reports go.
    """

    def __init__(
        self,
        backend: Backend,
        checkpoint_storage: storage.Storage,
        *,
        distributed: DistributedContext | None = None,
        info: ClusterInfo | None = None,
    ) -> None:
        self.info = info
        self.backend = backend
        self.distributed = distributed or DistributedContext()
        self.train = TrainContext(backend)
        self.checkpoint = CheckpointContext(checkpoint_storage, backend)
        self.preempt = PreemptContext(backend)
        self._profiler: Profiler | None = None

    def start_profiler(self) -> None:
        """Report the machine's load from now on."""
        if self._profiler is None:
            self._profiler = Profiler(self.backend)

    def close(self) -> None:
        """Flush every report and give back what the context holds; a second call does nothing."""
        self.preempt.close()
        if self._profiler is not None:
            self._profiler.close()
        self.backend.close()
        self.distributed.close()

    def __enter__(self) -> Context:
        self.preempt.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
) -> Context:
    """Return the context of this process, to be used in a ``with`` block.

    In a trial it talks to the master that launched the process; alone it keeps everything in a run
    directory.

    Args:
        distributed: this process's place among its workers; by default it is the only one.
        checkpoint_storage: a directory for checkpoints, instead of the configured one.
        run_dir: alone, the run directory; by default a fresh one under the data root.

    Raises:
        ClusterInfoError: the launcher's variables are incomplete.
        DetError: `run_dir` is in use.
    """
    info = get_cluster_info()
    backend, store = open_backend(info, run_dir)
    if checkpoint_storage is not None:
        store = storage.DirectoryStorage(checkpoint_storage)
    return Context(backend, store, distributed=distributed, info=info)


def open_backend(
    info: ClusterInfo | None,
    run_dir: str | os.PathLike[str] | None = None,
    *,
    metric: str | None = None,
    smaller_is_better: bool = True,
) -> tuple[Backend, storage.Storage]:
    """Return where this process reports to and stores its checkpoints.

    Args:
        info: what the launcher said; None alone.
        run_dir: alone, the run directory; None for a fresh one under the data root.
        metric: alone, the searcher's metric, to tell the best checkpoint.
        smaller_is_better: alone, which value of it is best.
    """
    if info is not None and info.trial is not None:
        # Imported here: a process alone needs no HTTP, and httpx takes a while.
        from det_keras.core.backend.trial import TrialBackend

        return TrialBackend(info), storage.from_config(info.trial.config["checkpoint_storage"])
    run = RunDirectory(Path(run_dir) if run_dir is not None else _fresh_run_directory())
    if run_dir is None:
        logger.info("This run is kept in %s", run.path)
    backend = AloneBackend(run, metric=metric, smaller_is_better=smaller_is_better)
    return backend, storage.DirectoryStorage(run.checkpoints)


def share_backend(
    distributed: DistributedContext, open_one: Callable[[], tuple[Backend, storage.Storage]]
) -> tuple[Backend, storage.Storage]:
    """Return the backend and the storage of a training with any number of workers.

    Args:
        distributed: the workers.
        open_one: opens the backend and the storage; called on the chief alone.

    Raises:
        DetError: `open_one` failed on the chief; every worker raises.
    """
    if distributed.size == 1:
        return open_one()
    opened: list[Backend] = []

    def open_and_keep() -> storage.Storage:
        backend, store = open_one()
        opened.append(backend)
        return store

    store = distributed.on_chief(open_and_keep)
    return SharedBackend(opened[0] if opened else None, distributed), store


def _fresh_run_directory() -> Path:
    from datetime import datetime

    runs = Home.from_environment().create().runs
    return runs / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
