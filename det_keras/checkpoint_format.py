"""The layout of a checkpoint that `context.fit` writes, and a reader that needs neither TensorFlow nor Keras.

    model.keras                     architecture, compile config and weights; model.weights.h5 if it cannot be described
    training_state/state.json       position, history, random states, phase, and a description of each variable
    training_state/variables.bin    the variables that the model's file does not hold, one after another
    manifest.json, metadata.json    of the storage and of the master

The description of a variable in state.json has its ``group``, ``path``, ``shape`` and ``dtype``, and where its bytes
are: ``weights_offset`` in the weights file, or ``offset`` in variables.bin. Scalars of the weights file have neither;
they are found by ``place``, the group and the key in the HDF5 file.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - adds bfloat16 and the like to NumPy's dtypes
import numpy as np

from det_keras.errors import CheckpointError

if TYPE_CHECKING:
    from typing_extensions import Self

VERSION = 1
MODEL_NAME = "model.keras"
#: The member of `MODEL_NAME` with the weights, and the file that replaces it.
WEIGHTS_NAME = "model.weights.h5"
STATE_NAME = "training_state/state.json"
VARIABLES_NAME = "training_state/variables.bin"

# Of a zip archive's local file header: what precedes the lengths of the name and of the extra field.
_LOCAL_HEADER_LENGTHS = 26


@dataclass(frozen=True)
class StoredState:
    """The training state of a checkpoint.

    Attributes:
        directory: the checkpoint.
        state: position, history, random states and phase, as JSON values.
        variables: descriptions of all variables, in order.
    """

    directory: Path
    state: Mapping[str, Any]
    variables: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the training state of the checkpoint in `directory`; its variables are mapped, not read.

        Raises:
            CheckpointError: the checkpoint contains no training state, or one of another version.
        """
        path = directory / STATE_NAME
        if not path.is_file():
            raise CheckpointError(
                f"Checkpoint `{directory.name}` holds no training state of det_keras: training cannot be resumed from "
                "it."
            )
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise CheckpointError(
                f"Checkpoint `{directory.name}` has format {content['version']}, this release reads {VERSION}. "
                "Resume it with the release that wrote it."
            )
        return cls(directory, content, content.pop("variables"))

    def array(self, variable: Mapping[str, Any]) -> np.ndarray[Any, Any] | None:
        """Return the value of a described variable, mapped; None if its bytes are not contiguous in any file."""
        if "weights_offset" in variable:
            content, start = self.weights, variable["weights_offset"]
        elif "offset" in variable:
            content, start = self._apart, variable["offset"]
        else:
            return None
        dtype = np.dtype(variable["dtype"])
        size_bytes = math.prod(variable["shape"]) * dtype.itemsize
        found: np.ndarray[Any, Any] = (
            content[start : start + size_bytes].view(dtype).reshape(variable["shape"])
        )
        return found

    def values(self) -> Sequence[np.ndarray[Any, Any] | None]:
        """Return the values of all variables, in order; None for those whose bytes are not contiguous in any file."""
        return [self.array(variable) for variable in self.variables]

    @cached_property
    def weights(self) -> np.ndarray[Any, Any]:
        """The bytes of the weights file, mapped rather than read."""
        path = self.directory / MODEL_NAME
        if not path.exists():
            return np.memmap(self.directory / WEIGHTS_NAME, np.uint8, "r")
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo(WEIGHTS_NAME)
        with path.open("rb") as file:
            file.seek(member.header_offset + _LOCAL_HEADER_LENGTHS)
            name_size, extra_size = struct.unpack("<HH", file.read(4))
            return np.memmap(path, np.uint8, "r", file.tell() + name_size + extra_size, (member.file_size,))

    @cached_property
    def _apart(self) -> np.ndarray[Any, Any]:
        path = self.directory / VARIABLES_NAME
        # An empty file cannot be mapped.
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
