"""Names in a storage: of checkpoints, of files, and of the processes that write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from uuid import UUID

from det_keras.errors import CheckpointError
from det_keras.storage.manifest import DELETED_NAME


def checkpoint_name(uuid: str) -> str:
    """Return a UUID in its canonical spelling.

    Raises:
        CheckpointError: `uuid` is not a UUID.
    """
    try:
        return str(UUID(uuid))
    except ValueError:
        raise CheckpointError(f"{uuid!r} is not the UUID of a checkpoint.") from None


def is_checkpoint_name(name: str) -> bool:
    """Return whether `name` is a UUID in its canonical spelling."""
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def relative_name(name: str) -> str:
    """Return `name` if it stays inside of a storage.

    Raises:
        ValueError: it is empty, absolute, or contains ``..``.
    """
    if not is_relative(name):
        raise ValueError(f"{name!r} cannot name a file of a storage. Use a relative path.")
    return name


def is_relative(name: str) -> bool:
    """Return whether `name` stays inside of a storage."""
    return bool(name) and not Path(name).is_absolute() and ".." not in Path(name).parts


def matching_files(directory: Path, globs: Sequence[str]) -> set[str]:
    """Return the relative paths of the files below `directory` that match any of `globs`.

    Raises:
        ValueError: a glob is empty or points outside of the directory.
    """
    found: set[str] = set()
    for glob in globs:
        if not glob or ".." in Path(glob).parts or Path(glob).is_absolute():
            raise ValueError(
                f"{glob!r} cannot select files of a checkpoint. Use a relative pattern such as 'code/**'."
            )
        # Before Python 3.13 `a/**` matches only directories; the files below them are meant.
        for path in directory.glob(glob):
            below = path.rglob("*") if path.is_dir() else [path]
            found.update(p.relative_to(directory).as_posix() for p in below if not p.is_dir())
    return found - {DELETED_NAME}


def media_prefix(cluster_id: str, experiment_id: int, trial_id: int | None = None) -> str:
    """Return the prefix of the media of an experiment or of one of its trials.

    Args:
        cluster_id: UUID of the cluster: several clusters may use the same storage.
        experiment_id: number of the experiment.
        trial_id: number of the trial; None for the whole experiment.
    """
    folder = PurePosixPath(cluster_id) / "media" / "experiment" / str(experiment_id)
    return str(folder if trial_id is None else folder / "trial" / str(trial_id))


def events_prefix(cluster_id: str, experiment_id: int, trial_id: int | None = None) -> str:
    """Return the prefix of the event files of an experiment or of one of its trials.

    Args:
        cluster_id: UUID of the cluster; empty outside a cluster.
        experiment_id: number of the experiment.
        trial_id: number of the trial; None for the whole experiment.
    """
    folder = PurePosixPath(cluster_id or "local") / "tensorboard" / "experiment" / str(experiment_id)
    return str(folder if trial_id is None else folder / "trial" / str(trial_id))
