"""A checkpoint at a master."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from det_keras import notebook
from det_keras.client import Session
from det_keras.display import metric_text, size_text, state_text
from det_keras.protocol.metrics import number, rank


class Checkpoint:
    """The state of a checkpoint when it was fetched.

    Attributes:
        uuid: its UUID.
        trial_id: number of its trial; None if it belongs to a job.
        experiment_id: number of its experiment; None if it belongs to a job.
        state: its state: ``COMPLETED``, ``PARTIALLY_DELETED`` or ``DELETED``.
        steps_completed: number of batches trained before it.
        metadata: its metadata.
        resources: size in bytes of each file; names of directories end with ``/``.
        metrics: the metrics of the validation at the checkpoint, {} without one.
        searcher_metric: the searcher's metric at that validation; None without one.
    """

    def __init__(self, shape: Mapping[str, Any], session: Session) -> None:
        self._session = session
        self.uuid = str(shape["uuid"])
        self._read(shape)

    def _read(self, shape: Mapping[str, Any]) -> None:
        training = shape.get("training") or {}
        self.trial_id = _id(training.get("trialId"))
        self.experiment_id = _id(training.get("experimentId"))
        self.state = state_text(shape["state"])
        self.metadata: dict[str, Any] = dict(shape.get("metadata") or {})
        self.steps_completed = int(self.metadata.get("steps_completed") or 0)
        self.resources = {name: int(size) for name, size in (shape.get("resources") or {}).items()}
        self.metrics: dict[str, Any] = dict((training.get("validationMetrics") or {}).get("avgMetrics") or {})
        self.searcher_metric = number(training.get("searcherMetric"))
        searcher = (training.get("experimentConfig") or {}).get("searcher") or {}
        self._searcher_metric_name = str(searcher.get("metric", ""))
        self._smaller_is_better = bool(searcher.get("smaller_is_better", True))

    def reload(self) -> None:
        """Fetch the checkpoint again.

        Raises:
            MasterError: the checkpoint no longer exists.
        """
        self._read(self._session.api.checkpoints.get(self.uuid))

    def download(self, path: str | os.PathLike[str] | None = None) -> str:
        """Download the files into a directory, which appears complete and verified, or not at all.

        Args:
            path: the directory, which does not exist or is empty; None for ``checkpoints/UUID``.

        Returns:
            Its absolute path.

        Raises:
            CheckpointError: the checkpoint was deleted, is corrupt, or cannot be got.
            DetError: the directory is not empty.
        """
        # Imported here: a notebook that only reads metrics needs no storages.
        from det_keras.connection.checkpoint_files import download

        record = self._session.api.checkpoints.get(self.uuid)
        return str(
            download(self._session, record, Path("checkpoints") / self.uuid if path is None else Path(path))
        )

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add values to the metadata; values of the same name are replaced.

        Args:
            metadata: JSON values by name.

        Raises:
            MasterError: the master rejects the call.
        """
        self.reload()
        self._replace_metadata({**self.metadata, **metadata})

    def remove_metadata(self, names: Iterable[str]) -> None:
        """Remove values from the metadata; names that do not exist are skipped.

        Args:
            names: names of the values.

        Raises:
            MasterError: the master rejects the call.
        """
        self.reload()
        removed = frozenset(names)
        self._replace_metadata({name: value for name, value in self.metadata.items() if name not in removed})

    def _replace_metadata(self, metadata: dict[str, Any]) -> None:
        self._session.api.checkpoints.set_metadata(self.uuid, metadata)
        self.metadata = metadata

    def delete(self) -> None:
        """Request the deletion of the files; the master deletes them in the background.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.checkpoints.delete([self.uuid])

    def remove_files(self, globs: Sequence[str]) -> None:
        """Request the deletion of some files; the master deletes them in the background.

        Args:
            globs: patterns of file names, such as ``code/**``.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.checkpoints.remove_files([self.uuid], list(globs))

    def __repr__(self) -> str:
        return f"Checkpoint(uuid={self.uuid!r}, trial_id={self.trial_id}, state={self.state})"

    def _repr_html_(self) -> str:
        facts = {
            "trial": self.trial_id,
            "batches": self.steps_completed,
            self._searcher_metric_name or "metric": metric_text(self.searcher_metric),
            "size": size_text(sum(self.resources.values())),
        }
        return notebook.card(f"Checkpoint {self.uuid} ({self.state})", notebook.facts(facts))

    def _metric(self, name: str | None) -> float | None:
        return self.searcher_metric if name is None else number(self.metrics.get(name))


def best_checkpoints(
    shapes: Iterable[Mapping[str, Any]],
    session: Session,
    *,
    sort_by: str | None,
    smaller_is_better: bool | None,
    max_results: int | None,
) -> list[Checkpoint]:
    """Return checkpoints, best first; those without the metric come last, newest first.

    Args:
        shapes: the `Checkpoint`s of the REST API.
        session: of their master.
        sort_by: name of a validation metric; None for the searcher's metric.
        smaller_is_better: direction of the metric; None for that of the searcher's metric.
        max_results: maximum number of checkpoints; None for all.

    Raises:
        ValueError: `max_results` is below 1.
    """
    if max_results is not None and max_results < 1:
        raise ValueError(f"`max_results` must be at least 1. Received: {max_results!r}.")

    def key(checkpoint: Checkpoint) -> tuple[tuple[bool, float], int]:
        smaller = checkpoint._smaller_is_better if smaller_is_better is None else smaller_is_better
        return rank(checkpoint._metric(sort_by), smaller_is_better=smaller), -checkpoint.steps_completed

    found = [Checkpoint(shape, session) for shape in shapes]
    return sorted(found, key=key)[:max_results]


def top_checkpoint(checkpoints: Sequence[Checkpoint], sort_by: str | None) -> Checkpoint | None:
    """Return the first of `best_checkpoints` if it has the metric, else None."""
    return checkpoints[0] if checkpoints and checkpoints[0]._metric(sort_by) is not None else None


def _id(value: Any) -> int | None:
    return int(value) if value else None
