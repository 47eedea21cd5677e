"""The location of media in a storage, beside the checkpoints."""

from __future__ import annotations

from pathlib import PurePosixPath


def media_prefix(cluster_id: str, experiment_id: int, trial_id: int | None = None) -> str:
    """Return the prefix of the media of an experiment or of one of its trials.

    Args:
        cluster_id: UUID of the cluster: several clusters may use the same storage.
        experiment_id: number of the experiment.
        trial_id: number of the trial; None for the whole experiment.
    """
    folder = PurePosixPath(cluster_id) / "media" / "experiment" / str(experiment_id)
    return str(folder if trial_id is None else folder / "trial" / str(trial_id))
