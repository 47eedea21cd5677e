"""The parts of a `fit` whose state a checkpoint contains, besides those that every training has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from det_keras.keras.checkpoint.trained_model import TrainedModel
from det_keras.keras.data import DataSource
from det_keras.keras.fit.validator import Validator
from det_keras.keras.fit.workers import FitWorkers
from det_keras.keras.training.parts import Part, Saved
from det_keras.keras.training.progress import Progress

_VALUES_NAME, _VALIDATION_FOLDER = "worker.npz", "validation"


class DataPart(Part):
    """The positions in the training data and in the validation data.

    Args:
        source: the training data.
        validator: evaluates the validation data; None if there is none.
        progress: the progress of the `fit`.
        is_chief: whether this worker's state is in the shared part of a checkpoint.
    """

    def __init__(
        self, source: DataSource, validator: Validator | None, progress: Progress, *, is_chief: bool
    ) -> None:
        self._source = source
        self._validator = validator
        self._progress = progress
        self._is_chief = is_chief

    def capture(self, directory: Path) -> Mapping[str, Any]:
        return {
            "steps_per_epoch": self._source.steps_per_epoch,
            "validation_source": self._validation_state(directory / _VALIDATION_FOLDER),
            "source": self._source.save_state(directory / "data"),
        }

    def capture_own(self, directory: Path) -> Mapping[str, Any]:
        return {} if self._is_chief else {"source": self._source.save_state(directory / "data")}

    def restore(self, saved: Saved) -> None:
        state, position = saved.state, self._progress.position
        of_source = saved.data_state((saved.own or {}).get("source", state["source"]))
        self._source.restore_passes(of_source, position.epoch)
        if self._validator is not None:
            folder = saved.own_file(_VALIDATION_FOLDER)
            self._validator.skip(state["validations"], state.get("validation_source") or {}, folder)
        # Reading the data again up to the position advances the streams that it draws from.
        saved.drawn |= self._source.restore_state(
            of_source,
            saved.own_file("data"),
            position.epoch,
            position.step,
            epochs_left=self._progress.epochs_left(self._source.steps_per_epoch),
        )

    def at_end(self) -> dict[str, Any]:
        """Return the state at the end of the `fit`, as JSON values, for `skip`."""
        return {
            "source": self._source.state_between_passes(),
            "validations": self._progress.validations,
            "validation_source": self._validation_state() or {},
        }

    def skip(self, state: Mapping[str, Any], *, passes: int, batches: int) -> None:
        """Bring the data to where an earlier process left it at the end of the `fit`.

        Args:
            state: what `at_end` returned there.
            passes: number of passes over the data.
            batches: number of trained batches.
        """
        self._source.skip_passes(passes, state.get("source") or {}, batches=batches)
        if self._validator is not None:
            self._validator.skip(state.get("validations", 0), state.get("validation_source") or {})

    def _validation_state(self, directory: Path | None = None) -> dict[str, Any] | None:
        """Return the state of the validation data; None while it is not open.

        Args:
            directory: for files that belong to it; None at the end of the `fit`, after which nothing is read of it.
        """
        if self._validator is None or not self._validator.is_open:
            return None
        source = self._validator.source
        return source.state_between_passes() if directory is None else source.save_state(directory)


class ModelPart(Part):
    """What a model has besides variables.

    Args:
        trained: the model.
    """

    def __init__(self, trained: TrainedModel) -> None:
        self._trained = trained

    def capture(self, directory: Path) -> Mapping[str, Any]:
        optimizers = self._trained.optimizers
        return {
            "stopped": bool(self._trained.model.stop_training),
            "optimizers": [index for index, optimizer in enumerate(optimizers) if optimizer.built],
        }


class ReplicaPart(Part):
    """The statistics and metrics of one of several workers.

    Args:
        workers: the workers.
    """

    def __init__(self, workers: FitWorkers) -> None:
        self._workers = workers

    def capture_own(self, directory: Path) -> Mapping[str, Any]:
        replica = self._workers.replica
        assert replica is not None
        state = replica.get_state()
        np.savez(directory / _VALUES_NAME, *state["values"])
        return {"trained": state["trained"]}

    def restore(self, saved: Saved) -> None:
        replica = self._workers.replica
        if replica is None:
            return
        if saved.own is None:
            replica.begin_anew()
            return
        with np.load(saved.own_file(_VALUES_NAME)) as arrays:
            values = [arrays[f"arr_{index}"] for index in range(len(arrays.files))]
        replica.load_state({"trained": saved.own["trained"], "values": values})
