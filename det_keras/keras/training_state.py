"""The files of a checkpoint: what goes where, written from copies and read back whole.

    model.keras                     architecture, compile config, weights; opens without this package
    training_state/state.json       position, history, random states, phase, description of the variables
    training_state/variables.bin    the variables that model.keras does not hold, one after another
    training_state/callbacks/       pickled states of the user's own callbacks, read only on a resume
    training_state/rank-0/          what differs by rank: the position of a tf.data iterator

Nothing that others need to load the model is pickled.
"""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from det_keras.errors import CheckpointError
from det_keras.keras.model_file import ModelFile, Place, read_places
from det_keras.keras.variables import to_numpy

__all__ = ["RestoredState", "TrainingState", "read_training_state"]

_VERSION = 1


class CodeWriter(Protocol):
    """Writes the submitted code into a checkpoint."""

    def write(self, directory: Path) -> None:
        """Write it below `directory`."""


@dataclass
class TrainingState:
    """Everything that decides the next step, copied at a batch boundary.

    Attributes:
        model_file: the model's file but for its values.
        places: where each variable stands in that file.
        values: copies of all variables.
        variables: their descriptions.
        state: JSON values: position, history, random states, phase.
        callback_states: functions that pickle the states of callbacks, by name.
        rank_directory: files of this rank; gone with this object.
        code: writes the submitted code.
    """

    model_file: ModelFile
    places: Mapping[int, Place]
    values: Sequence[tf.Tensor]
    variables: Sequence[Mapping[str, Any]]
    state: Mapping[str, Any]
    callback_states: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    rank_directory: tempfile.TemporaryDirectory[str] | None = None
    code: CodeWriter | None = None

    def write(self, directory: Path) -> None:
        """Write the files into `directory`; may be called again after a failure."""
        values = to_numpy(self.values)
        model_count = sum(1 for one in self.variables if one["group"] == "model")
        self.model_file.write(directory, values[:model_count])
        target = directory / "training_state"
        (target / "callbacks").mkdir(parents=True)
        self._write_variables(target, values)
        for name, dump in self.callback_states.items():
            (target / "callbacks" / f"{name}.pkl").write_bytes(dump())
        if self.rank_directory is not None and any(Path(self.rank_directory.name).iterdir()):
            shutil.copytree(self.rank_directory.name, target / "rank-0")
        if self.code is not None:
            self.code.write(directory)

    def _write_variables(self, target: Path, values: Sequence[np.ndarray[Any, Any]]) -> None:
        entries = []
        offset = 0
        with (target / "variables.bin").open("wb") as file:
            for index, (description, value) in enumerate(zip(self.variables, values, strict=True)):
                if index in self.places:
                    entries.append({**description, "place": list(self.places[index])})
                    continue
                content = np.ascontiguousarray(value)
                # bfloat16 and its like have no buffer that a file can take; their bytes have.
                file.write(content.reshape(-1).view(np.uint8).data)
                entries.append({**description, "offset": offset})
                offset += content.nbytes
        content_json = {"version": _VERSION, **self.state, "variables": entries}
        (target / "state.json").write_text(json.dumps(content_json), encoding="utf-8")


@dataclass(frozen=True)
class RestoredState:
    """A checkpoint's training state, read and verified but not yet applied.

    Attributes:
        state: the JSON values.
        variables: descriptions of the variables.
        directory: the checkpoint; valid while its `restore_path` is open.
    """

    state: Mapping[str, Any]
    variables: Sequence[Mapping[str, Any]]
    directory: Path

    @property
    def rank_files(self) -> Path:
        """The files of this rank."""
        return self.directory / "training_state" / "rank-0"

    def values(self) -> list[np.ndarray[Any, Any]]:
        """Read the values of all variables, in order."""
        places = {
            index: (one["place"][0], one["place"][1])
            for index, one in enumerate(self.variables)
            if "place" in one
        }
        found = read_places(self.directory, places)
        raw = np.memmap(self._binary, np.uint8, "r") if self._binary.stat().st_size else np.empty(0, np.uint8)
        for index, one in enumerate(self.variables):
            if index not in found:
                found[index] = _slice(raw, one)
        return [found[index] for index in range(len(self.variables))]

    def pickles(self) -> dict[str, Any]:
        """Load the states of the user's own callbacks by name; only for the trial that wrote them."""
        folder = self.directory / "training_state" / "callbacks"
        return {path.stem: pickle.loads(path.read_bytes()) for path in sorted(folder.glob("*.pkl"))}

    @property
    def _binary(self) -> Path:
        return self.directory / "training_state" / "variables.bin"


def read_training_state(directory: Path) -> RestoredState:
    """Read the training state of a checkpoint.

    Raises:
        CheckpointError: the checkpoint holds none, or one of a later version.
    """
    path = directory / "training_state" / "state.json"
    if not path.is_file():
        raise CheckpointError(
            f"Checkpoint `{directory.name}` holds no training state of det_keras: training cannot go on from it."
        )
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["version"] != _VERSION:
        raise CheckpointError(
            f"Checkpoint `{directory.name}` has format {content['version']}, this release reads {_VERSION}. "
            "Resume it with the release that wrote it."
        )
    variables = content.pop("variables")
    return RestoredState(content, variables, directory)


def _slice(raw: np.ndarray[Any, Any], description: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    dtype = tf.as_dtype(keras.backend.standardize_dtype(description["dtype"])).as_numpy_dtype
    count = int(np.prod(description["shape"], dtype=np.int64))
    start = description["offset"]
    content: np.ndarray[Any, Any] = raw[start : start + count * np.dtype(dtype).itemsize]
    shaped: np.ndarray[Any, Any] = content.view(dtype).reshape(description["shape"])
    return shaped
