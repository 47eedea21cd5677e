"""Assembles `model.keras` from copied variables, and reads variables back from one.

`model.save` walks the live model and copies every variable on the calling thread. Here the walk is done
once: it records which variable goes to which place of the weights file. From then on the file is written
in the background from copies, and training goes on.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Keras has no public way to write a weights file from anything but a live model.
from keras.src.saving import saving_lib

__all__ = ["ModelFile", "Place", "read_places"]

_WEIGHTS = "model.weights.h5"
_OPTIMIZER_PATH = "optimizer"

#: Where a variable stands in the weights file: path of the group and key in it.
Place = tuple[str, str]


@dataclass(frozen=True)
class _Entry:
    """One dataset of the weights file: a variable by its index, or a value that a layer computed."""

    key: str
    variable: int | None
    value: Any = None


@dataclass(frozen=True)
class _Group:
    path: str
    metadata: Mapping[str, str] | None
    entries: tuple[_Entry, ...]


class _Recorder(saving_lib.H5IOStore):  # type: ignore[misc]
    """Takes the place of the weights file during the walk, and notes what would be written where."""

    def __init__(self, index_of: Mapping[int, int]) -> None:
        # The parent would open a file.
        self.mode = "w"
        self.groups: list[tuple[str, Mapping[str, str] | None, list[_Entry]]] = []
        self._index_of = index_of

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Mapping[str, str] | None = None) -> _Recorder:
        self.groups.append((path, metadata, []))
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        index = self._index_of.get(id(value))
        entry = _Entry(key, index) if index is not None else _Entry(key, None, np.array(value))
        self.groups[-1][2].append(entry)

    def close(self) -> None:
        return


class ModelFile:
    """The content of a model's `.keras` file but for the values of its variables.

    Args:
        model: built and compiled.
        variables: the model's variables, in the order of the copies that `write` will be given.
    """

    def __init__(self, model: Any, variables: Sequence[Any]) -> None:
        self._model = model
        self._config, self._metadata = saving_lib._serialize_model_as_json(model)
        self._index_of = {id(variable): index for index, variable in enumerate(variables)}
        self._assets = _record_assets(model)
        self._groups = self._walk()
        self._is_plain = all(entry.variable is not None for group in self._groups for entry in group.entries)

    @property
    def places(self) -> dict[int, Place]:
        """Index of each variable that the file holds as it is -> its place."""
        return {
            entry.variable: (group.path, entry.key)
            for group in self._groups
            for entry in group.entries
            if entry.variable is not None
        }

    def refresh(self) -> None:
        """Compute again what layers store besides their variables; call it where the copies are made."""
        if not self._is_plain:
            self._groups = self._walk()

    def write(self, path: Path, values: Sequence[np.ndarray[Any, Any]]) -> None:
        """Write the file with `values`, which stand in the order of the variables."""
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("metadata.json", self._metadata)
            archive.writestr("config.json", self._config)
            weights = path.with_suffix(".weights.h5")
            try:
                self._write_weights(weights, values)
                archive.write(weights, _WEIGHTS)
            finally:
                weights.unlink(missing_ok=True)
            for name, content in self._assets.items():
                archive.writestr(name, content)

    def _write_weights(self, path: Path, values: Sequence[np.ndarray[Any, Any]]) -> None:
        store = saving_lib.H5IOStore(path, mode="w")
        try:
            for group in self._groups:
                target = store.make(group.path, metadata=group.metadata)
                for entry in group.entries:
                    target[entry.key] = entry.value if entry.variable is None else values[entry.variable]
        finally:
            store.close()

    def _walk(self) -> tuple[_Group, ...]:
        recorder = _Recorder(self._index_of)
        saving_lib._save_state(
            self._model, weights_store=recorder, assets_store=None, inner_path="", visited_saveables=set()
        )
        return tuple(
            _Group(path, metadata, tuple(entries))
            for path, metadata, entries in recorder.groups
            # The optimizer's variables belong to the training state; others load the model without them.
            if path != _OPTIMIZER_PATH and not path.startswith(f"{_OPTIMIZER_PATH}/")
        )


def read_places(path: Path, places: Mapping[int, Place]) -> dict[int, np.ndarray[Any, Any]]:
    """Return the values at `places` of a `.keras` file, by the same keys."""
    with zipfile.ZipFile(path) as archive:
        store = saving_lib.H5IOStore(_WEIGHTS, archive=archive, mode="r")
        try:
            return {index: store.get(group)[key] for index, (group, key) in places.items()}
        finally:
            store.close()


def _record_assets(model: Any) -> dict[str, bytes]:
    """Return the files that layers such as TextVectorization keep beside their variables, by archive name."""
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        store = saving_lib.DiskIOStore("assets", archive=archive, mode="w")
        saving_lib._save_state(
            model, weights_store=None, assets_store=store, inner_path="", visited_saveables=set()
        )
        store.close()
        return {name: archive.read(name) for name in archive.namelist()}
