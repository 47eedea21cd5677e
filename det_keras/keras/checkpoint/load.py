"""Loads a model from a checkpoint: by UUID, or by trial."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from det_keras.connection.checkpoint_files import fetch, local_directory
from det_keras.errors import CheckpointError, MasterError, MasterUnavailableError
from det_keras.scratch import Scratch
from det_keras.storage.manifest import verify_manifest

if TYPE_CHECKING:
    from det_keras.client import Session

logger = logging.getLogger(__name__)


def load_model(directory: Path, custom_objects: Mapping[str, Any] | None) -> Any:
    """Return the compiled model of a checkpoint, loaded in Keras's safe mode.

    Raises:
        CheckpointError: the checkpoint contains no model, or classes that Keras cannot find.
    """
    path = directory / "model.keras"
    if not path.is_file():
        raise CheckpointError(f"Checkpoint `{directory.name}` holds no model.keras.")
    try:
        with warnings.catch_warnings():
            # The file intentionally contains no optimizer variables, and Keras warns about that.
            warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
            return keras.models.load_model(path, custom_objects=dict(custom_objects or {}))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"The model of checkpoint `{directory.name}` cannot be loaded: {error} {_advice(path, str(error))}"
        ) from error


def load_model_from_checkpoint_path(path: str | os.PathLike[str], tags: Sequence[str] | None = None) -> Any:
    """Return the compiled Keras model of a downloaded checkpoint.

    Args:
        path: the checkpoint's directory.
        tags: without effect; they selected graphs of a SavedModel, and checkpoints no longer contain one.

    Raises:
        CheckpointError: the checkpoint contains no model, or classes that Keras cannot find.
    """
    if tags is not None:
        _tell_of_tags()
    return load_model(Path(path), None)


@contextmanager
def open_checkpoint(
    session: Session, *, trial_id: int | None, uuid: str | None, best: bool
) -> Iterator[Path]:
    """Yield a directory with the verified files of a checkpoint that the master lists.

    Args:
        session: the session with the master.
        trial_id: use the newest or the best checkpoint of this trial.
        uuid: use the checkpoint with this UUID.
        best: use the trial's best checkpoint by the searcher's metric, not the newest.

    Raises:
        CheckpointError: there is no such checkpoint, or it is corrupt.
    """
    record = _find(session, trial_id, best) if uuid is None else _get(session, uuid)
    local = local_directory(record)
    if local is not None:
        verify_manifest(local)
        yield local
        return
    with Scratch("checkpoint") as folder:
        directory = Path(folder) / record["uuid"]
        try:
            fetch(session, record, directory)
        except (MasterError, MasterUnavailableError) as error:
            raise CheckpointError(f"Checkpoint {record['uuid']!r} cannot be downloaded: {error}") from error
        verify_manifest(directory)
        yield directory


def _advice(path: Path, error: str) -> str:
    if "Python lambda" in error:
        return (
            "In the model, write a named function in the place of the lambda, and pass it with "
            "`custom_objects={'name': name}`. If you trust it, get the checkpoint with `det checkpoint download UUID`; "
            f"`keras.models.load_model({path.name!r}, safe_mode=False)` loads the file as it is."
        )
    return (
        "Classes and functions of your own need `custom_objects={'Name': Name}`, or their code imported from the "
        "context directory."
    )


@functools.cache
def _tell_of_tags() -> None:
    """Log once per process that `tags` has no effect."""
    logger.warning("`tags` has no effect: checkpoints hold a Keras model, not a SavedModel.")


def _get(session: Session, uuid: str) -> dict[str, Any]:
    try:
        return session.api.checkpoints.get(uuid)
    except MasterError as error:
        raise CheckpointError(f"Checkpoint {uuid!r} cannot be used: {error}.") from error


def _find(session: Session, trial_id: int | None, best: bool) -> dict[str, Any]:
    assert trial_id is not None
    # When sorting by the metric, the master chooses the order by `smaller_is_better`.
    order = {"sortByAttr": "SORT_BY_SEARCHER_METRIC", "orderBy": None} if best else {}
    try:
        found = session.api.trials.checkpoints(trial_id, limit=1, **order)
    except MasterError as error:
        raise CheckpointError(f"Trial {trial_id} cannot be used: {error}.") from error
    if not found:
        raise CheckpointError(f"Trial {trial_id} has no checkpoint.")
    checkpoint: dict[str, Any] = found[0]
    return checkpoint
