"""`det.core.init()`: the framework-free interface between a training process and its cluster."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from det_keras import storage
from det_keras.cluster_info import ClusterInfo, get_cluster_info, get_copy_info
from det_keras.core.backend.base import Backend
from det_keras.core.backend.copy import open_copy
from det_keras.core.backend.local import LocalBackend, RunDirectory
from det_keras.core.backend.shared import SharedBackend
from det_keras.core.checkpoint import CheckpointContext
from det_keras.core.distributed import DistributedContext
from det_keras.core.media.store import MediaStore
from det_keras.core.preempt import PreemptContext, PreemptMode
from det_keras.core.profiler import ProfilerContext
from det_keras.core.registry import MasterRegistry, ModelUse, Registry
from det_keras.core.script_end import UncaughtHook, close_after, close_at_end, is_closed
from det_keras.core.searcher import SearcherContext
from det_keras.core.tensorboard import EventFiles, TensorboardMode, prefix_of
from det_keras.core.train import TrainContext
from det_keras.errors import InvalidHP
from det_keras.home import Home
from det_keras.protocol.origin import origin_of
from det_keras.provenance.capture import is_enabled
from det_keras.workers.heartbeat import code_of_rejection

if TYPE_CHECKING:
    from det_keras.core.backend.trial import LoadReporter
from det_keras.core.gpus import load_nvml, open_gpus
from det_keras.provenance.process import describe_process
from det_keras.provenance.repository import read_repository

logger = logging.getLogger(__name__)


class Context:
    """The parts that connect a training process with its cluster, or with a run directory.

    Args:
        backend: the destination of reports.
        checkpoint_storage: the storage of checkpoints and of uploaded TensorBoard files.
        distributed: rank and size; a single worker by default.
        info: the process's task; None in a local run.
        preempt_mode: which workers ask the master for requests to stop.
        tensorboard_mode: which workers write and upload TensorBoard's files.

    Attributes:
        info: the process's task; None in a local run.
        train: reports metrics, progress and status.
        checkpoint: stores and restores checkpoints.
        media: stores media in the background; used on the chief only.
        preempt: requests to stop.
        profiler: reports the load of the machines.
        searcher: lengths of training, for scripts of earlier releases.
        distributed: rank, size and the exchange of small objects.
        backend: the destination of reports.
        tensorboard_mode: which workers write and upload TensorBoard's files.
    """

    def __init__(
        self,
        backend: Backend,
        checkpoint_storage: storage.Storage,
        *,
        distributed: DistributedContext | None = None,
        info: ClusterInfo | None = None,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
        tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
    ) -> None:
        self.info = info
        self.backend = backend
        self.distributed = distributed or DistributedContext()
        self.tensorboard_mode = tensorboard_mode = TensorboardMode(tensorboard_mode)
        preempt_mode = PreemptMode(preempt_mode)
        self._events = _event_files(info, backend, checkpoint_storage, self.distributed, tensorboard_mode)
        self.train = TrainContext(backend, self.distributed, self._events)
        origin = None if info is None else origin_of(info.cluster_id, info.allocation_id)
        self.checkpoint = CheckpointContext(checkpoint_storage, backend, self.distributed, origin)
        self.media = MediaStore(checkpoint_storage, backend.unshared)
        self.preempt = PreemptContext(
            backend, self.distributed, preempt_mode, ask=_own_poll(info, preempt_mode)
        )
        self.searcher = SearcherContext(backend, self.distributed, _configured_length(info))
        # Of several machines without a trial, only the chief's is reported.
        self.profiler = ProfilerContext(self.distributed, self._load_report)
        self._load_reporter: LoadReporter | None = None
        self._uncaught: UncaughtHook | None = None
        # Digests of the models that this process has reported.
        self._models: set[bytes] = set()

    @property
    def experimental(self) -> ModelUse:
        """Tells the model registry what this task uses."""
        return ModelUse(self.open_registry if self.distributed.is_chief else None)

    @property
    def is_job(self) -> bool:
        """Whether this is a generic job, which has no checkpoints of its own."""
        return self.info is not None and self.info.trial is None

    @contextmanager
    def open_registry(self) -> Iterator[Registry]:
        """Open the model registry of this process: that of its master, or of the run directory of a local run.

        Only the chief may.
        """
        if not self.is_job:
            with self.backend.unshared.open_registry() as registry:
                yield registry
            return
        assert self.info is not None
        # Imported here: a local run needs no HTTP.
        from det_keras.core.backend.trial import open_user_session

        with open_user_session(self.info) as session:
            yield MasterRegistry(session.api)

    def report_provenance(self) -> None:
        """Report in the background where this training runs and with which packages; by the chief only."""
        environ, has_own_files = os.environ, self.info is None
        if not self.records_provenance:
            return

        def record() -> dict[str, Any]:
            # Imported here, on the thread of the report.
            from det_keras.core.context import training_record

            return training_record(environ, with_repository=has_own_files)

        self.backend.report_provenance(record)

    @property
    def records_provenance(self) -> bool:
        """Whether records are stored: those of the chief, unless this is turned off."""
        return self.backend.keeps_provenance and is_enabled(os.environ)

    def report_model(self, description: Mapping[str, Any]) -> None:
        """Report in the background of which layers the trained model consists; each description once.

        Args:
            description: JSON values.
        """
        digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).digest()
        # A script may train the same model in many calls of `fit`.
        if self.records_provenance and digest not in self._models:
            self._models.add(digest)
            self.backend.report_provenance(lambda: {"model": dict(description)})

    def watch_for_uncaught(self) -> None:
        """Handle an exception that ends the script, until the context is closed.

        A hint is printed after its traceback. `InvalidHP` in a trial is reported, and the process exits with 0.
        """
        self._uncaught = UncaughtHook(self._leave_if_invalid)

    def leave_as_invalid(self, error: InvalidHP, close: Callable[[], None]) -> NoReturn:
        """Report to the searcher that these hyperparameters are invalid, and end the process.

        Args:
            error: what the script raised.
            close: releases all resources.
        """
        logger.warning("The script rejected these hyperparameters: %s", error)
        self.train.report_early_exit()
        close()
        sys.stdout.flush()
        sys.stderr.flush()
        # After an uncaught exception Python would exit with 1, which a master takes for a failure in any case.
        os._exit(code_of_rejection(os.environ))

    def alert(
        self, title: str | None = None, description: str | None = None, level: str | None = "info"
    ) -> None:
        """Send a message to the webhooks that wait for alerts, and write it to the log; on the chief only.

        A local run keeps it in its run directory.

        Args:
            title: the subject of the message.
            description: the text of the message.
            level: ``debug``, ``info``, ``warn`` or ``error``.
        """
        if not self.distributed.is_chief:
            return
        number = {"debug": logging.DEBUG, "warn": logging.WARNING, "error": logging.ERROR}.get(
            level or "", logging.INFO
        )
        logger.log(number, "%s", ": ".join(part for part in (title, description) if part))
        self.backend.alert(title or "", description or "", logging.getLevelName(number))

    def close(self) -> None:
        """Flush every report and release all resources; a second call has no effect.

        Raises:
            MasterUnavailableError: reports could not be delivered; the message names them.
        """
        is_closed(self.close)
        # From the last to the first: each is called, whatever those before it raise.
        with ExitStack() as steps:
            if self._uncaught is not None:
                steps.callback(self._uncaught.remove)
            steps.callback(self.distributed.close)
            steps.callback(self.backend.close)
            if self._load_reporter is not None:
                steps.callback(self._load_reporter.close)
            steps.callback(self.profiler.off)
            steps.callback(self._events.close)
            steps.callback(self.media.close)
            steps.callback(self.preempt.close)

    def __enter__(self) -> Context:
        self.preempt.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, InvalidHP):
            if self.info is not None:
                self.leave_as_invalid(error, self.close)
            self.train.report_early_exit()
        if error is not None:
            self.backend.note_error(error)
        close_after(error, self.close)
        if error is not None and self._uncaught is not None:
            # If the script does not catch the exception, the hook prints the hint after the traceback.
            self._uncaught.install()

    def _load_report(self) -> Callable[[str, Mapping[str, object]], None] | None:
        """Return what reports the load of this machine; None if nothing does."""
        if self.distributed.is_chief:
            return self.backend.report_system_metrics
        if self.info is None or self.info.trial is None:
            return None
        # Imported here: otherwise only the chief needs HTTP.
        from det_keras.core.backend.trial import LoadReporter

        self._load_reporter = self._load_reporter or LoadReporter(self.info)
        return self._load_reporter.report

    def _leave_if_invalid(self, error: BaseException) -> None:
        if isinstance(error, InvalidHP) and self.info is not None:
            self.leave_as_invalid(error, self.close)


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
    run_dir: str | os.PathLike[str] | None = None,
) -> Context:
    """Return the context of this process, to be used in a ``with`` block.

    In a trial it communicates with the master that launched the process. A local run stores everything in a run
    directory.

    Args:
        distributed: this process's place among its workers; by default it is the only one.
        checkpoint_storage: a directory for checkpoints, or a `checkpoint_storage` section as in a config, instead of
            the configured one.
        preempt_mode: who calls `preempt.should_preempt`; by default all workers, and the chief's answer holds.
        tensorboard_mode: who uploads TensorBoard's files; by default the context.
        run_dir: in a local run, the run directory; by default a new one under the data root.

    Returns:
        The context of this process. A ``with`` block closes it, and the end of the script at the latest.

    Raises:
        ClusterInfoError: the launcher's variables are incomplete.
        ConfigError: `checkpoint_storage` is a section of an unknown type, or of one whose package is not installed.
        ValueError: `checkpoint_storage` is the address of a cloud storage.
        DetError: `run_dir` is in use.

    Example:
        ```pycon
        >>> import det_keras as det
        >>> with det.core.init() as core:
        ...     core.train.report_metrics("training", steps_completed=10, metrics={"loss": 0.5})
        ...     with core.checkpoint.store_path({"steps_completed": 10}) as (path, uuid):
        ...         _ = (path / "state.txt").write_text("step 10")
        ...     with core.checkpoint.restore_path(uuid) as path:
        ...         print((path / "state.txt").read_text())
        step 10
        ```
    """
    info = get_cluster_info()
    distributed = distributed or DistributedContext()
    chosen = None if checkpoint_storage is None else _storage_of(checkpoint_storage)
    backend, store = share_backend(distributed, lambda: open_backend(info, run_dir))
    context = Context(
        backend,
        chosen or store,
        distributed=distributed,
        info=info,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )
    context.watch_for_uncaught()
    context.report_provenance()
    close_at_end(context.close)
    return context


def open_backend(
    info: ClusterInfo | None,
    run_dir: str | os.PathLike[str] | None = None,
    *,
    metric: str | None = None,
    smaller_is_better: bool = True,
) -> tuple[Backend, storage.Storage]:
    """Return the backend and the checkpoint storage of this process.

    Args:
        info: the process's task; None in a local run.
        run_dir: the run directory of a local run; None for a new one under the data root.
        metric: in a local run, name of the metric that determines the best checkpoint; None for none.
        smaller_is_better: in a local run, how this metric compares.
    """
    copy = get_copy_info()
    if copy is not None:
        return open_copy(copy, info)
    if info is not None and info.trial is not None:
        # Imported here: a local run needs no HTTP, and importing httpx takes time.
        from det_keras.core.backend.trial import TrialBackend

        section = info.trial.config["checkpoint_storage"]
        return TrialBackend(info), storage.from_config(section, mount=storage.container_mount())
    run = RunDirectory(Path(run_dir) if run_dir is not None else fresh_run_directory())
    if run_dir is None:
        logger.info("This run is stored in %s", run.path)
    backend = LocalBackend(run, metric=metric, smaller_is_better=smaller_is_better)
    return backend, storage.DirectoryStorage(run.checkpoints)


def share_backend(
    distributed: DistributedContext, open_one: Callable[[], tuple[Backend, storage.Storage]]
) -> tuple[Backend, storage.Storage]:
    """Return the backend and the storage of a training with any number of workers.

    Args:
        distributed: the workers.
        open_one: opens the backend and the storage; called on the chief only.

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


def fresh_run_directory() -> Path:
    """Create a run directory under the data root and return it."""
    import tempfile
    from datetime import datetime

    runs = Home.from_environment().create().runs
    runs.mkdir(exist_ok=True)
    # Several contexts of one process may be opened in the same second.
    return Path(tempfile.mkdtemp(prefix=f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}-", dir=runs))


def _storage_of(place: str | os.PathLike[str] | Mapping[str, Any]) -> storage.Storage:
    if isinstance(place, Mapping):
        return storage.from_config(place)
    if "://" in os.fspath(place):
        raise ValueError(
            f"{place!r} is not a directory. Use a section for an object store, such as {{'type': 's3', 'bucket': 'b'}}."
        )
    return storage.DirectoryStorage(os.fspath(place))


def _event_files(
    info: ClusterInfo | None,
    backend: Backend,
    store: storage.Storage,
    workers: DistributedContext,
    mode: TensorboardMode,
) -> EventFiles:
    if info is None or info.trial is None:
        return EventFiles(backend.tensorboard_directory)
    # In AUTO mode the files of the other workers stay where they are.
    watched = mode is TensorboardMode.AUTO and workers.is_chief
    return EventFiles(None, store, prefix_of(info), rank=workers.rank, watched=watched)


def _own_poll(info: ClusterInfo | None, mode: PreemptMode) -> Callable[[float], bool] | None:
    """Return a worker's own poll of the master for requests to stop; None if the mode has none."""
    if mode is not PreemptMode.WorkersAskMaster or info is None or info.trial is None:
        return None
    from det_keras.core.backend.trial import open_task_session, wait_for_preemption

    session = open_task_session(info)
    return lambda timeout_s: wait_for_preemption(session, info, timeout_s)


def _configured_length(info: ClusterInfo | None) -> Any:
    if info is None or info.trial is None:
        return None
    return (info.trial.config.get("searcher") or {}).get("max_length")


def training_record(environ: Mapping[str, str], *, with_repository: bool) -> dict[str, Any]:
    """Return the record of this process.

    Args:
        environ: the environment for git.
        with_repository: whether the working directory may belong to a repository of the user; that of a task of a
            master does not.
    """
    record = {**describe_process(sys.orig_argv, Path.cwd()), "gpus": _gpu_names()}
    for name in ("tensorflow", "keras"):
        # What is loaded, which need not be what is installed first on the path.
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            record[name] = version
    if with_repository:
        try:
            record["repository"] = read_repository(Path.cwd(), environ)
        except OSError:
            # Git is not installed.
            record["repository"] = None
    return record


def _gpu_names() -> list[str]:
    gpus = open_gpus(load_nvml())
    if gpus is None:
        return []
    try:
        return gpus.names()
    finally:
        gpus.close()
