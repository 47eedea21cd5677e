"""The files of a checkpoint: their layout, writing them from copies, and reading them.

    training_state/callbacks/       pickled states of the user's own callbacks, read only on a resume
    training_state/rank-<r>/        state that differs by rank: the position of a tf.data iterator, and with several
                                    workers random states, moving statistics and metrics

`checkpoint_format` describes the others.

Loading the model does not need any pickled file.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from det_keras.checkpoint_format import (
    MODEL_NAME,
    STATE_NAME,
    VARIABLES_NAME,
    VERSION,
    WEIGHTS_NAME,
    StoredState,
)
from det_keras.core.file_plan import FilePlan, Piece, Slice
from det_keras.keras.checkpoint.model_file import ModelFile, Place, read_places
from det_keras.keras.checkpoint.variables import copy_bytes
from det_keras.scratch import Scratch

logger = logging.getLogger(__name__)

_OWN_NAMES = {"code", "manifest.json", "metadata.json", MODEL_NAME, WEIGHTS_NAME, "training_state"}


class Code(Protocol):
    """The submitted code."""

    def content(self) -> bytes:
        """Return the code as a gzip-compressed tar archive, empty if there is none."""


@dataclass
class TrainingState:
    """All state that the next step depends on, copied at a batch boundary.

    It is made on the training thread. `fill` and `plan` run on threads of the writer, one after the other, while
    training continues. The tensors do not change meanwhile: TensorFlow copies a variable's value at its next write.

    Attributes:
        model_file: the model's file without the values of its variables; None if there is no model.
        places: the place of each variable in that file.
        values: the values of all variables, held by reference; None for those that `fill` has copied.
        variables: the descriptions of all variables.
        state: JSON values: position, history, random states, phase.
        callback_states: functions that pickle the states of callbacks, by name.
        rank_directory: files of this rank; deleted with this object.
        callback_files: files that the user's callbacks add to this checkpoint; deleted with this object.
        worker_files: the files that differ between workers, by path relative to ``training_state/``.
        code: the submitted code.
        further_models: files of further models, by name in the checkpoint; their values are in the other files too.
    """

    model_file: ModelFile | None
    places: Mapping[int, Place]
    values: list[tf.Tensor | None]
    variables: Sequence[Mapping[str, Any]]
    state: Mapping[str, Any]
    callback_states: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    rank_directory: Scratch | None = None
    callback_files: Scratch | None = None
    worker_files: Mapping[str, bytes] = field(default_factory=dict)
    code: Code | None = None
    further_models: Mapping[str, ModelFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._slices: list[Slice] = []
        offset = 0
        for tensor in self.values:
            assert tensor is not None
            size = tensor.dtype.size * tensor.shape.num_elements()
            self._slices.append(Slice(offset, size))
            offset += copy_bytes(tensor)
        self.size_bytes = offset

    def fill(self, memory: memoryview) -> None:
        """Copy the variables into `memory`, and release each when it is copied; a second call does nothing."""
        for index, place in enumerate(self._slices):
            tensor = self.values[index]
            if tensor is not None:
                target = np.frombuffer(memory, np.uint8, place.size, place.offset)
                # `.numpy()` would copy into new memory first.
                np.copyto(target, np.asarray(tensor).reshape(-1).view(np.uint8))
                # Nothing may hold it any more: TensorFlow copies what is held when the variable is written.
                self.values[index] = tensor = None

    def plan(self) -> FilePlan:
        """Return the files of the checkpoint."""
        files: dict[str, Sequence[Piece]] = {}
        zips = {} if self.model_file is None else self.model_file.add_to(files, self._slices)
        for name, file in self.further_models.items():
            zips |= file.add_to(files, self._slices, name)
        apart = [index for index in range(len(self.variables)) if index not in self.places]
        files[VARIABLES_NAME] = [self._slices[index] for index in apart]
        files[STATE_NAME] = (self._document(apart),)
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
        if self.model_file is not None:
            for index, offset in self.model_file.offsets(self._slices).items():
                entries[index]["weights_offset"] = offset
        return json.dumps({"version": VERSION, **self.state, "variables": entries}).encode()


@dataclass(frozen=True)
class RestoredState(StoredState):
    """A checkpoint's training state, read and verified but not yet applied; valid while its `restore_path` is open."""

    @property
    def folder(self) -> Path:
        """The directory of the training state's files."""
        return self.directory / "training_state"

    def values(self) -> list[np.ndarray[Any, Any]]:
        """Return the values of all variables, in order; most are memory-mapped and read at their first access."""
        arrays = [self.array(variable) for variable in self.variables]
        # Scalars and types that HDF5 does not support have no contiguous bytes in the weights file.
        places = {
            index: (variable["place"][0], variable["place"][1])
            for index, variable in enumerate(self.variables)
            if arrays[index] is None
        }
        apart = read_places(self.directory, places) if places else {}
        return [apart[index] if array is None else array for index, array in enumerate(arrays)]

    def pickles(self) -> dict[str, Any]:
        """Return the unpickled states of the user's callbacks by name; only for the trial that wrote them."""
        folder = self.folder / "callbacks"
        return {path.stem: pickle.loads(path.read_bytes()) for path in sorted(folder.glob("*.pkl"))}


def _contents(folder: Scratch | None) -> Iterator[tuple[str, bytes]]:
    """Yield the relative paths and contents of the files in a temporary directory."""
    if folder is not None:
        root = Path(folder.name)
        for path in sorted(file for file in root.rglob("*") if file.is_file()):
            yield path.relative_to(root).as_posix(), path.read_bytes()
