"""Opens the run of a script that no master started and that reports to one; see `core/backend/detached.py`."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras import storage
from det_keras.config import ExperimentConfig
from det_keras.connection.masters import find_url, open_session
from det_keras.connection.settings import Settings
from det_keras.connection.token_cache import canonical_address
from det_keras.core.backend.local import RunDirectory
from det_keras.core.context import fresh_run_directory
from det_keras.errors import DetError, MasterError

if TYPE_CHECKING:
    from det_keras.client import Session
    from det_keras.core.backend.detached import DetachedBackend

logger = logging.getLogger(__name__)

# The fields of a storage that are no secrets: the log is sent to the master.
_PLACE_FIELDS = ("type", "container_path", "host_path", "storage_path", "bucket", "container", "prefix")
_LONGEST_EXTERNAL_ID = 255
# Without a searcher in the config: what the best validation is by, as in a default `fit`.
_METRIC = "val_loss"


@dataclass(frozen=True)
class DetachedRequest:
    """To which master a script reports, and under which names.

    Attributes:
        settings: the master and the user.
        project: ``workspace/project``; None for the master's default.
        name: name of the experiment; None for the config's, then the script's.
        external_id: the name by which later starts find the run; None for a new experiment at each start.
    """

    settings: Settings
    project: str | None = None
    name: str | None = None
    external_id: str | None = None

    @classmethod
    def read(
        cls,
        environ: Mapping[str, str],
        *,
        master: str | None,
        project: str | None,
        name: str | None,
        external_id: str | None,
    ) -> DetachedRequest | None:
        """Return the request of the arguments of `init` and the environment; None if there is none.

        Raises:
            ValueError: an argument is malformed.
        """
        settings = Settings.from_environment(environ, master=master)
        if project is not None and [bool(part.strip()) for part in project.split("/")] != [True, True]:
            raise ValueError(f"`project` must be 'workspace/project'. Received: {project!r}.")
        if external_id is not None and not 0 < len(external_id) <= _LONGEST_EXTERNAL_ID:
            raise ValueError(
                f"`external_id` must have 1 to {_LONGEST_EXTERNAL_ID} characters. Received: {external_id!r}."
            )
        if master is None and not settings.is_detached:
            if any(value is not None for value in (project, name, external_id)):
                logger.warning(
                    "`project`, `name` and `external_id` have no effect: this script reports to no master. Pass "
                    "`master`, or set DET_KERAS_DETACHED=1 and DET_MASTER."
                )
            return None
        return cls(settings, project, name, external_id)


@dataclass(frozen=True)
class DetachedRun:
    """An open run.

    Attributes:
        backend: the destination of its reports.
        store: the storage of its checkpoints.
        seed: its seed, that of the first start.
        hparams: its hyperparameter values.
    """

    backend: DetachedBackend
    store: storage.Storage
    seed: int
    hparams: dict[str, Any]


def open_run(
    request: DetachedRequest,
    config: ExperimentConfig,
    given: Mapping[str, Any],
    *,
    run_dir: str | os.PathLike[str] | None,
    seed: int | None,
    sample: Callable[[int], dict[str, Any]],
    rank: int | None,
) -> DetachedRun:
    """Create or find the experiment and its trial, and begin a run; call it on the chief only.

    Args:
        request: the master and the names.
        config: the config of the run.
        given: the config as the user wrote it.
        run_dir: the run directory; None for one that belongs to the external id.
        seed: the seed; None for that of the first start, or a random one.
        sample: returns the hyperparameter values for a seed.
        rank: rank of this process; None for the only one.

    Raises:
        DetError: the master cannot be used; the message says what to do.
    """
    url = find_url(request.settings)
    directory = RunDirectory(_run_directory(request, url, run_dir))
    try:
        session = open_session(request.settings)
        try:
            return _begin(request, session, directory, config, given, seed, sample, rank)
        except BaseException:
            session.close()
            raise
    except BaseException:
        # Release the directory, so that a corrected call can use it.
        directory.close()
        raise


def _begin(
    request: DetachedRequest,
    session: Session,
    directory: RunDirectory,
    config: ExperimentConfig,
    given: Mapping[str, Any],
    seed: int | None,
    sample: Callable[[int], dict[str, Any]],
    rank: int | None,
) -> DetachedRun:
    # Imported here: a local run needs no HTTP, and importing httpx takes time.
    from det_keras.core.backend.detached import DetachedBackend, DetachedPlace, start_run

    section = {"type": "directory", "container_path": str(directory.checkpoints)}
    if (given.get("checkpoint_storage") or {}).get("type"):
        section = config.to_dict()["checkpoint_storage"]
    searcher = config.searcher
    place = DetachedPlace(
        directory,
        storage.from_config(section),
        section,
        smaller_is_better=searcher.smaller_is_better if searcher is not None else True,
    )
    wanted = random.SystemRandom().randrange(2**31) if seed is None else seed
    text = json.dumps(_experiment(request, config, given, section, wanted))
    try:
        experiment = _find_or_create(request, session, text)
        kept = _kept_seed(experiment, wanted)
        if seed is not None and seed != kept:
            raise DetError(
                f"Experiment {experiment['id']}, with the external id {request.external_id!r}, was begun with seed "
                f"{kept}, not {seed}. Leave out `seed`, or give another `external_id`."
            )
        hparams = sample(kept)
        run = start_run(session, experiment["id"], hparams, request.external_id)
    except MasterError as error:
        raise _explained(request, session.url, error) from error
    backend = DetachedBackend(run, session, place, rank=rank)
    logger.info("This run is experiment %s, trial %s, on %s", run.experiment_id, run.trial_id, session.url)
    logger.info(
        "Its checkpoints are stored by %s",
        ", ".join(f"{name} {section[name]}" for name in _PLACE_FIELDS if section.get(name)),
    )
    return DetachedRun(backend, place.storage, kept, hparams)


def _find_or_create(request: DetachedRequest, session: Session, text: str) -> dict[str, Any]:
    answer = session.api.experiments.create_unmanaged(text, request.external_id)
    for notice in answer.get("notices") or ():
        logger.info("%s", notice)
    experiment: dict[str, Any] = answer["experiment"]
    owner, user = experiment.get("username"), session.api.accounts.me().get("username")
    if owner and owner != user:
        raise DetError(
            f"The external id {request.external_id!r} belongs to experiment {experiment['id']} of user {owner!r}, and "
            f"you are {user!r}. Give another `external_id`."
        )
    return session.api.experiments.get(experiment["id"])


def _kept_seed(experiment: Mapping[str, Any], wanted: int) -> int:
    kept = (experiment["config"].get("reproducibility") or {}).get("experiment_seed")
    return wanted if kept is None else int(kept)


def _experiment(
    request: DetachedRequest,
    config: ExperimentConfig,
    given: Mapping[str, Any],
    section: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Return the config of the experiment: only what a Determined master accepts of every script."""
    searcher = config.searcher
    content = {
        "name": request.name or given.get("name") or _script_name(),
        "description": given.get("description"),
        "labels": given.get("labels"),
        "data": given.get("data"),
        "checkpoint_storage": dict(section),
        "reproducibility": {"experiment_seed": seed},
        "searcher": {
            "name": "single",
            "metric": searcher.metric if searcher is not None else _METRIC,
            "smaller_is_better": searcher.smaller_is_better if searcher is not None else True,
        },
    }
    if request.project is not None:
        content["workspace"], content["project"] = (part.strip() for part in request.project.split("/"))
    return {name: value for name, value in content.items() if value}


def _script_name() -> str:
    name = Path(sys.argv[0]).stem
    return "notebook" if name in ("", "ipykernel_launcher") else name


def _run_directory(request: DetachedRequest, url: str, run_dir: str | os.PathLike[str] | None) -> Path:
    if run_dir is not None:
        return Path(run_dir)
    if request.external_id is None:
        return fresh_run_directory()
    # The same at every start, so that a second process with the same id finds it in use.
    digest = hashlib.sha256(f"{canonical_address(url)} {request.external_id}".encode()).hexdigest()[:16]
    return request.settings.home.create().runs / f"detached-{digest}"


def _explained(request: DetachedRequest, url: str, error: MasterError) -> DetError:
    if error.status in (401, 403):
        return DetError(
            f"Unauthenticated: the master at {url} does not accept the stored login ({error.message}). "
            f"Log in with `det -m {url} user login`."
        )
    hint = (
        ""
        if request.project is None
        else f" Is there a project {request.project!r}, and may you write to it?"
    )
    return DetError(f"The master at {url} refused this run: {error.message.rstrip('.')}.{hint}")
