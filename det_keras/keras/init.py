"""`det.keras.init()`: opens the context of this process from its environment; one can be open at a time."""

from __future__ import annotations

import logging
import operator
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from det_keras import core as det_core
from det_keras.cluster_info import ClusterInfo, LocalOverrides, WorkerInfo, get_cluster_info, get_copy_info
from det_keras.config import ExperimentConfig, RandomStream, load_experiment_config, load_yaml
from det_keras.config.overrides import apply_overrides
from det_keras.core.backend.base import Backend
from det_keras.core.backend.local import LocalBackend
from det_keras.core.context import open_backend, share_backend
from det_keras.core.distributed import DistributedContext
from det_keras.core.tensorboard import TensorboardMode
from det_keras.errors import ClusterInfoError, DetError
from det_keras.keras.context import KerasContext
from det_keras.keras.current import Opened, opened, set_opened
from det_keras.keras.detached import DetachedRequest, open_run
from det_keras.keras.distributed.exchange import EngineExchange
from det_keras.keras.local_events import EventWriter
from det_keras.keras.process_setup import (
    check_eager,
    configure_logs,
    prepare_process,
    prepare_virtual_workers,
)
from det_keras.keras.random_ops.counters import random_counters
from det_keras.keras.script import Script
from det_keras.keras.training.settings import FitSettings
from det_keras.keras.training_info import HParams, TrainingInfo
from det_keras.keras.verification import LocalVerification
from det_keras.protocol.engines import AUTO
from det_keras.storage import Storage

logger = logging.getLogger(__name__)


def init(
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    hparams: Mapping[str, Any] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    master: str | None = None,
    project: str | None = None,
    name: str | None = None,
    external_id: str | None = None,
    on_missing_checkpoint: str = "fail",
    virtual_workers: int | None = None,
    verify_resume: bool = False,
) -> KerasContext:
    """Return the context of this process, and seed Python, NumPy, TensorFlow and Keras.

    In a trial all settings come from the master, and the arguments but `on_missing_checkpoint` are ignored with a log
    message. A second call returns the same context; in a local run only without arguments or with the same ones.

    A local run with `master`, or with the environment variables DET_KERAS_DETACHED=1 and DET_MASTER, is *detached*:
    it is shown on that master as an unmanaged experiment with its metrics, checkpoints, log and state. The user is
    the one of `det user login`, or of DET_USER and DET_PASS.

    Args:
        config: in a local run, path of a YAML file or a mapping; it needs neither entrypoint nor searcher.
        hparams: in a local run, hyperparameter values, which take precedence over those of `config`.
        run_dir: in a local run, the run directory; a script that is started again with it resumes training. By
            default a new one under the data root.
        seed: in a local run, the seed of all random operations, 0 to 2**32 - 1; by default that of the config, then
            that of the run directory or the detached run, then a random one.
        master: address of the master that a detached run reports to.
        project: in a detached run, ``workspace/project`` of the experiment; by default the master's own.
        name: in a detached run, name of the experiment; by default that of the config, then that of the script.
        external_id: in a detached run, a name by which a script that is started again resumes the run; by default
            each start is a new experiment.
        on_missing_checkpoint: in a trial or detached run, what happens if the storage does not have the checkpoint
            that the master recorded last: ``fail`` ends the process with an error, ``restart`` resumes from the
            newest one that the storage has, or trains from the beginning.
        virtual_workers: in a local run, the number of parts of each batch whose results do not depend on how many
            workers compute them, a power of two; by default `reproducibility.virtual_workers` of the config.
        verify_resume: in a local run of one process, whether a copy of the script resumes in the background from the
            first checkpoint of this process and is compared with the second. The result is logged, at the latest when
            the context is closed, which waits for it. In a trial `reproducibility.verify_resume` of the config says
            that.

    Returns:
        The context, which is also a context manager. It is closed at exit at the latest.

    Raises:
        ValueError: `seed` is not such a number, `on_missing_checkpoint` is neither of the two, or `project` or
            `external_id` is malformed.
        ClusterInfoError: the launcher's variables are incomplete.
        ConfigError: `config` is invalid; the message names every invalid field.
        DetError: `run_dir` is in use, or a context with other arguments is open, or the master of a detached run is
            not available, refuses the user or the project, or knows `external_id` from another user.

    Example:
        ```pycon
        >>> import det_keras as det
        >>> with det.keras.init(hparams={"learning_rate": 0.01}, seed=42) as context:
        ...     context.training.hparams["learning_rate"], context.training.seed
        (0.01, 42)
        ```
    """
    if on_missing_checkpoint not in ("fail", "restart"):
        raise ValueError(
            f"`on_missing_checkpoint` must be 'fail' or 'restart'. Received: {on_missing_checkpoint!r}."
        )
    names = {"master": master, "project": project, "name": name, "external_id": external_id}
    values = (*names.values(), virtual_workers)
    arguments = (_comparable(config), _comparable(hparams), _comparable(run_dir), seed, *values)
    is_bare = all(argument is None for argument in arguments)
    known = opened()
    if known is not None:
        if known.core.info is None and not is_bare and arguments != known.arguments:
            raise DetError(
                "A context with other arguments is open in this process. Call `context.close()` on it first."
            )
        found: KerasContext = known.context
        return found
    # Check before a run directory is locked, so that a corrected call can use it.
    check_eager()
    info = get_cluster_info()
    skip_missing = on_missing_checkpoint == "restart"
    if info is not None:
        context = _init_on_cluster(info, skip_missing_checkpoints=skip_missing)
        # Log only here: logging is set up now, and the rank is known.
        if not is_bare and context.distributed.is_chief:
            logger.info("The arguments of init() are ignored here: the master says what they are.")
    else:
        # A copy of a detached run is none: it reports nothing.
        detached = None if get_copy_info() is not None else DetachedRequest.read(os.environ, **names)
        context = _init_local(
            config, hparams, run_dir, seed, detached, virtual_workers, skip_missing_checkpoints=skip_missing
        )
        if verify_resume and get_copy_info() is None:
            context.close_after(_verification_of(context))
    set_opened(Opened(context.core, context, arguments))
    if context.distributed.virtual_workers == 1:
        # Seeds count the random ops of a graph, and that of a worker has the steps of all its virtual workers: with
        # another number of workers the numbers would be others all the same.
        random_counters.install()
    _write_events(context)
    return context


def _verification_of(context: KerasContext) -> LocalVerification | None:
    """Return what verifies a local run; None, with a warning, if no copy of it can be started."""
    backend, reason = context.core.backend, None
    if context.distributed.size > 1:
        reason = "it has several workers"
    elif not isinstance(backend, LocalBackend):
        reason = "it reports to a master"
    elif "ipykernel" in sys.modules:
        reason = "a notebook cannot be started a second time"
    if reason is None:
        assert isinstance(backend, LocalBackend)
        return LocalVerification(backend, context.seed)
    if context.distributed.is_chief:
        logger.warning("The resume of this run is not verified: %s.", reason)
    return None


def _forget() -> None:
    """Allow another context to be opened, after the current one was closed."""
    random_counters.remove()
    set_opened(None)


def _write_events(context: KerasContext) -> None:
    """Write reported metrics also as TensorBoard events."""
    core = context.core
    if core.tensorboard_mode is TensorboardMode.AUTO and context.distributed.is_chief:
        core.train.listen(EventWriter(core.train.get_tensorboard_path()).write)


def _init_on_cluster(info: ClusterInfo, *, skip_missing_checkpoints: bool) -> KerasContext:
    trial = info.trial
    config = None if trial is None else ExperimentConfig.from_dict(trial.config)
    workers = _join_workers(config)
    if workers.size == 1 and len(info.container_addrs) > 1:
        raise ClusterInfoError(
            f"This task runs on {len(info.container_addrs)} machines ({', '.join(info.container_addrs)}), and this "
            "process is not one of several workers. Start the script with `python3 -m det_keras.launch.distributed -- "
            "python3 train.py` as the entrypoint, or ask for no more slots than one machine has."
        )
    if workers.size == 1 and len(info.slot_ids) > 1:
        logger.warning(
            "This task has %s slots and one process: the others are idle. Start the script with "
            "`python3 -m det_keras.launch.distributed -- python3 train.py` as the entrypoint to use them.",
            len(info.slot_ids),
        )
    if trial is None or config is None:
        configure_logs(debug=False)
        seed = workers.on_chief(lambda: random.SystemRandom().randrange(2**31))
        prepare_process(seed, None, workers)
        backend, store = share_backend(workers, lambda: open_backend(None))
        core = det_core.Context(backend, store, distributed=workers, info=info)
        data = info.task_config.get("data") or {}
        return KerasContext(Script(core, FitSettings(), seed=seed), None, config_data=data, on_close=_forget)
    configure_logs(debug=trial.debug)
    prepare_process(trial.trial_seed, config, workers)
    backend, store = share_backend(workers, lambda: open_backend(info))
    core = det_core.Context(backend, store, distributed=workers, info=info)
    given = workers.on_chief(lambda: _given_fields(core))
    settings = FitSettings.from_config(config, given, trial.hparams)
    training = TrainingInfo(
        hparams=HParams.nested(trial.hparams),
        seed=trial.trial_seed,
        experiment_config=trial.config,
        trial_id=trial.trial_id,
        experiment_id=trial.experiment_id,
        latest_checkpoint=info.latest_checkpoint,
        max_length=settings.max_length,
    )
    script = Script(core, settings, seed=trial.trial_seed, skip_missing_checkpoints=skip_missing_checkpoints)
    return KerasContext(script, training, config_data=config.data, on_close=_forget)


def _init_local(
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
    hparams: Mapping[str, Any] | None,
    run_dir: str | os.PathLike[str] | None,
    seed: int | None,
    detached: DetachedRequest | None,
    virtual_workers: int | None,
    *,
    skip_missing_checkpoints: bool,
) -> KerasContext:
    configure_logs(debug=False)
    # Before a run directory is taken, which would keep it.
    seed = _checked_seed(seed)
    overrides = LocalOverrides.from_environment(os.environ)
    if overrides.config is not None:
        logger.info("The config is the one given to `det experiment create`.")
    raw = _read_config(overrides.config or config)
    if virtual_workers is not None:
        raw = apply_overrides(raw, [f"reproducibility.virtual_workers={virtual_workers}"])
    loaded = load_experiment_config(raw, alone=True)
    for notice in loaded.notices if raw else ():
        logger.info("%s", notice)
    workers = _join_workers(loaded.config)
    if seed is None:
        seed = (raw.get("reproducibility") or {}).get("experiment_seed")
    run = _LocalRun(loaded.config, raw, dict(hparams or {}), overrides.run_dir or run_dir, seed)
    backend, store = share_backend(workers, lambda: run.open(detached, workers))
    run.seed, run.trial_id, run.experiment_id = workers.broadcast((run.seed, run.trial_id, run.experiment_id))
    assert run.seed is not None
    if not workers.is_chief:
        run.hparams = _sample(loaded.config, run.seed, run.hparams)
    prepare_process(run.seed, loaded.config, workers)
    core = det_core.Context(backend, store, distributed=workers)
    settings = FitSettings.from_config(loaded.config, raw.keys(), run.hparams)
    settings = replace(settings, batch_limit=overrides.batch_limit)
    training = TrainingInfo(
        hparams=HParams.nested(run.hparams),
        seed=run.seed,
        experiment_config=loaded.config.to_dict() if raw else {},
        trial_id=run.trial_id,
        experiment_id=run.experiment_id,
        latest_checkpoint=next((record.uuid for record in backend.checkpoints()), None),
        max_length=settings.max_length,
    )
    script = Script(core, settings, seed=run.seed, skip_missing_checkpoints=skip_missing_checkpoints)
    return KerasContext(
        script,
        training,
        config_data=loaded.config.data,
        master=None if detached is None else detached.settings.master,
        on_close=_forget,
    )


@dataclass
class _LocalRun:
    """A run without a launcher, before and after it is opened.

    Attributes:
        config: its config.
        raw: the config as the user wrote it.
        hparams: before, the given values; after, all of them.
        run_dir: the run directory; None for a new one.
        seed: before, the given seed or None; after, the run's.
        trial_id: in a detached run, number of its trial.
        experiment_id: in a detached run, number of its experiment.
    """

    config: ExperimentConfig
    raw: Mapping[str, Any]
    hparams: dict[str, Any]
    run_dir: str | os.PathLike[str] | None
    seed: int | None
    trial_id: int | None = None
    experiment_id: int | None = None

    def open(self, detached: DetachedRequest | None, workers: DistributedContext) -> tuple[Backend, Storage]:
        """Open the destination of reports and the storage; on the chief only."""
        return self._open_directory() if detached is None else self._open_detached(detached, workers)

    def _open_directory(self) -> tuple[Backend, Storage]:
        searcher = self.config.searcher
        backend, store = open_backend(
            None,
            self.run_dir,
            metric=searcher.metric if searcher is not None else None,
            smaller_is_better=searcher.smaller_is_better if searcher is not None else True,
        )
        assert isinstance(backend, LocalBackend)
        try:
            self.seed = _run_seed(backend, self.seed)
        except DetError:
            # Release the directory, so that a corrected call can use it.
            backend.close()
            raise
        self.hparams = _sample(self.config, self.seed, self.hparams)
        return backend, store

    def _open_detached(
        self, request: DetachedRequest, workers: DistributedContext
    ) -> tuple[Backend, Storage]:
        run = open_run(
            request,
            self.config,
            self.raw,
            run_dir=self.run_dir,
            seed=self.seed,
            sample=lambda seed: _sample(self.config, seed, self.hparams),
            rank=workers.rank if workers.size > 1 else None,
        )
        self.seed, self.hparams = run.seed, run.hparams
        self.trial_id, self.experiment_id = run.backend.run.trial_id, run.backend.run.experiment_id
        return run.backend, run.store


def _read_config(config: str | os.PathLike[str] | Mapping[str, Any] | None) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    path = Path(config)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DetError(f"The config file {str(path)!r} cannot be read: {error.strerror}.") from error
    return load_yaml(text, source=str(path))


def _sample(config: ExperimentConfig, seed: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config's hyperparameters, replaced by those in `given`.

    Args:
        config: the config.
        seed: the seed for sampling.
        given: values by name.
    """
    space = config.hyperparameters
    values: dict[str, Any] = space.sample(RandomStream(seed))
    drawn = space.variable_names()
    sampled = {
        name: value
        for name, value in values.items()
        # A name may have a dot of its own.
        if name not in given and any(path == name or path.startswith(f"{name}.") for path in drawn)
    }
    if sampled:
        logger.warning("The config has a search space; a local run uses one sample of it: %s", sampled)
    return values | dict(given)


def _checked_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**32:
        raise ValueError(f"`seed` must be an integer from 0 to 2**32 - 1. Received: {seed!r}.")
    return number


def _run_seed(backend: LocalBackend, seed: int | None) -> int:
    """Return the seed of a run directory, which stores the seed of its first run."""
    kept = backend.run.read().get("seed")
    if kept is not None:
        if seed is not None and seed != kept:
            raise DetError(
                f"The run in {backend.run.path} was begun with seed {kept}, not {seed}. "
                "Leave out `seed`, or give another `run_dir`."
            )
        return int(kept)
    if seed is None:
        seed = random.SystemRandom().randrange(2**31)
        logger.info("The seed of this run is %s.", seed)
    backend.run.update(seed=seed)
    return seed


def _given_fields(core: det_core.Context) -> set[str]:
    """Return the top-level fields that the user wrote, if the master provides them."""
    try:
        return set(load_yaml(core.backend.original_config() or "{}"))
    except DetError as error:
        logger.debug("The submitted config is not known: %s", error)
        return set()


def _join_workers(config: ExperimentConfig | None) -> DistributedContext:
    worker = WorkerInfo.from_environment(os.environ)
    virtual = 1 if config is None else config.reproducibility.virtual_workers
    if virtual > 1:
        # Before the engine: Horovod starts TensorFlow.
        prepare_virtual_workers()
    exchange = EngineExchange(worker) if worker.size > 1 else None
    workers = DistributedContext.of(worker, exchange)
    wanted = AUTO if config is None else config.optimizations.collective_engine
    if exchange is not None and wanted not in (AUTO, exchange.engine) and workers.is_chief:
        logger.warning(
            "The launcher chose the engine %s, the config names %s. In a local run give it to the launcher: "
            "`--engine %s`.", exchange.engine, wanted, wanted,
        )  # fmt: skip
    if virtual > 1:
        workers.set_virtual_workers(virtual)
    return workers


def _comparable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return repr(sorted(value.items(), key=lambda item: str(item[0])))
    return os.fspath(value) if isinstance(value, os.PathLike) else value
