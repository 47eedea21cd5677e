"""Where a storage keeps TensorBoard's event files, beside the checkpoints."""

from __future__ import annotations

from pathlib import PurePosixPath

__all__ = ["events_prefix"]


def events_prefix(cluster_id: str, experiment_id: int, trial_id: int | None = None) -> str:
    """Return the common beginning of the names of an experiment's events, or of one trial's."""
    folder = PurePosixPath(cluster_id or "local") / "tensorboard" / "experiment" / str(experiment_id)
    return str(folder if trial_id is None else folder / "trial" / str(trial_id))
