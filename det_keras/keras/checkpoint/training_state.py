"""The files of a checkpoint: their layout, writing them from copies, and reading them.

    model.keras                     architecture, compile config, weights; opens without this package
    training_state/state.json       position, history, random states, phase, description of the variables
    training_state/variables.bin    the variables that model.keras does not hold, one after another
    training_state/callbacks/       pickled states of the user's own callbacks, read only on a resume
    training_state/rank-<r>/        state that differs by rank: the position of a tf.data iterator, and with several
                                    workers random states, moving statistics and metrics

Loading the model does not need any pickled file.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.file_plan import FilePlan, Piece, Slice
from det_keras.errors import CheckpointError
from det_keras.keras.checkpoint.model_file import ModelFile, Place, map_weights, read_places
from det_keras.keras.checkpoint.variables import copy_bytes

__all__ = ["RestoredState", "TrainingState", "read_training_state"]

logger = logging.getLogger(__name__)

_VERSION = 1
_OWN_NAMES = {"code", "manifest.json", "metadata.json", "model.keras", "model.weights.h5", "training_state"}
_COPY_BYTES = 4 << 20
_COPY_THREADS = 4


class Code(Protocol):
    """The submitted code."""

    def content(self) -> bytes:
        """Return the code as a gzip-compressed tar archive, empty if there is none."""


@dataclass
class TrainingState:
    """All state that the next step depends on, copied at a batch boundary.

    It is made on the training thread. `fill` runs there or on the writer's thread, `plan` on the writer's thread, while
    training continues. The tensors do not change meanwhile: TensorFlow copies a variable's value at its next write.

    Attributes:
        model_file: the model's file without the values of its variables.
        places: the place of each variable in that file.
        values: copies of all variables; None once `fill` has taken them.
        variables: the descriptions of all variables.
        state: JSON values: position, history, random states, phase.
        callback_states: functions that pickle the states of callbacks, by name.
        rank_directory: files of this rank; deleted with this object.
        callback_files: files that the user's callbacks add to this checkpoint; deleted with this object.
        worker_files: the files that differ between workers, by path relative to ``training_state/``.
        code: the submitted code.
    """

    model_file: ModelFile
    places: Mapping[int, Place]
    values: Sequence[tf.Tensor] | None
    variables: Sequence[Mapping[str, Any]]
    state: Mapping[str, Any]
    callback_states: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    rank_directory: tempfile.TemporaryDirectory[str] | None = None
    callback_files: tempfile.TemporaryDirectory[str] | None = None
    worker_files: Mapping[str, bytes] = field(default_factory=dict)
    code: Code | None = None

    def __post_init__(self) -> None:
        self._slices: list[Slice] = []
        offset = 0
        for tensor in self.values or ():
            size = tensor.dtype.size * tensor.shape.num_elements()
            self._slices.append(Slice(offset, size))
            offset += copy_bytes(tensor)
        self.size_bytes = offset

    def fill(self, memory: memoryview) -> None:
        """Copy the variables into `memory` and release them; a second call does nothing."""
        if self.values is None:
            return
        copies: list[tuple[Any, Any]] = []
        for tensor, place in zip(self.values, self._slices, strict=True):
            target = np.frombuffer(memory, np.uint8, place.size, place.offset)
            # `.numpy()` would copy into new memory first.
            source = np.asarray(tensor).reshape(-1).view(np.uint8)
            parts = [slice(start, start + _COPY_BYTES) for start in range(0, place.size, _COPY_BYTES)]
            copies.extend((target[part], source[part]) for part in parts)
        if self.size_bytes < 2 * _COPY_BYTES:
            for target, source in copies:
                np.copyto(target, source)
        else:
            # Training waits for this copy, and one core does not use the full memory bandwidth.
            with ThreadPoolExecutor(min(_COPY_THREADS, os.cpu_count() or 1)) as pool:
                list(pool.map(np.copyto, *zip(*copies, strict=True)))
        self.values = None

    def plan(self) -> FilePlan:
        """Return the files of the checkpoint."""
        model_count = sum(1 for one in self.variables if one["group"] == "model")
        files: dict[str, Sequence[Piece]] = {}
        zips = self.model_file.add_to(files, self._slices[:model_count])
        apart = [index for index in range(len(self.variables)) if index not in self.places]
        files["training_state/variables.bin"] = [self._slices[index] for index in apart]
        files["training_state/state.json"] = (self._document(apart),)
        for name, dump in self.callback_states.items():
            files[f"training_state/callbacks/{name}.pkl"] = (dump(),)
        for name, content in _contents(self.rank_directory):
            files[f"training_state/rank-0/{name}"] = (content,)
        files.update({f"training_state/{name}": (content,) for name, content in self.worker_files.items()})
        for name, content in _contents(self.callback_files):
            if name.split("/")[0] in _OWN_NAMES:
                logger.warning(
                    "A callback's file `%s` is left out of the checkpoint: the name is taken.", name
                )
            else:
                files[name] = (content,)
        code = self.code.content() if self.code is not None else b""
        return FilePlan(files, zips, {"code": code} if code else {})

    def _document(self, apart: Sequence[int]) -> bytes:
        entries: list[dict[str, Any]] = [
            {**description, "place": list(self.places[index])} if index in self.places else dict(description)
            for index, description in enumerate(self.variables)
        ]
        offset = 0
        for index in apart:
            entries[index]["offset"] = offset
            offset += self._slices[index].size
        for index, offset in self.model_file.offsets(self._slices).items():
            entries[index]["weights_offset"] = offset
        return json.dumps({"version": _VERSION, **self.state, "variables": entries}).encode()


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
    def folder(self) -> Path:
        """The directory of the training state's files."""
        return self.directory / "training_state"

    def values(self) -> list[np.ndarray[Any, Any]]:
        """Return the values of all variables, in order; most are memory-mapped and read at their first access."""
        # Scalars and types that HDF5 does not support have no contiguous bytes in the weights file.
        places = {
            index: (one["place"][0], one["place"][1])
            for index, one in enumerate(self.variables)
            if "place" in one and "weights_offset" not in one
        }
        found = read_places(self.directory, places) if places else {}
        weights = map_weights(self.directory)
        apart = np.memmap(self._binary, np.uint8, "r") if self._binary.stat().st_size else weights[:0]
        for index, one in enumerate(self.variables):
            if "weights_offset" in one:
                found[index] = _slice(weights, one, one["weights_offset"])
            elif index not in found:
                found[index] = _slice(apart, one, one["offset"])
        return [found[index] for index in range(len(self.variables))]

    def pickles(self) -> dict[str, Any]:
        """Return the unpickled states of the user's callbacks by name; only for the trial that wrote them."""
        folder = self.folder / "callbacks"
        return {path.stem: pickle.loads(path.read_bytes()) for path in sorted(folder.glob("*.pkl"))}

    @property
    def _binary(self) -> Path:
        return self.folder / "variables.bin"


def read_training_state(directory: Path) -> RestoredState:
    """Read the training state of a checkpoint.

    Raises:
        CheckpointError: the checkpoint contains no training state, or one of a later version.
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


def _contents(folder: tempfile.TemporaryDirectory[str] | None) -> Iterator[tuple[str, bytes]]:
    """Yield the relative paths and contents of the files in a temporary directory."""
    if folder is not None:
        root = Path(folder.name)
        for path in sorted(one for one in root.rglob("*") if one.is_file()):
            yield path.relative_to(root).as_posix(), path.read_bytes()


def _slice(raw: np.ndarray[Any, Any], description: Mapping[str, Any], start: int) -> np.ndarray[Any, Any]:
    dtype = tf.as_dtype(keras.backend.standardize_dtype(description["dtype"])).as_numpy_dtype
    count = int(np.prod(description["shape"], dtype=np.int64))
    content: np.ndarray[Any, Any] = raw[start : start + count * np.dtype(dtype).itemsize]
    shaped: np.ndarray[Any, Any] = content.view(dtype).reshape(description["shape"])
    return shaped
