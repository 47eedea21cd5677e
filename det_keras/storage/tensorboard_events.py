"""The location of TensorBoard's event files in a storage, beside the checkpoints."""

from __future__ import annotations

from pathlib import PurePosixPath


def events_prefix(cluster_id: str, experiment_id: int, trial_id: int | None = None) -> str:
    """Return the prefix of the event files of an experiment or of one of its trials.

    Args:
        cluster_id: UUID of the cluster; empty outside a cluster.
        experiment_id: number of the experiment.
        trial_id: number of the trial; None for the whole experiment.
    """
    folder = PurePosixPath(cluster_id or "local") / "tensorboard" / "experiment" / str(experiment_id)
    return str(folder if trial_id is None else folder / "trial" / str(trial_id))
