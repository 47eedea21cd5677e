"""The weights file of a model without its values: fixed bytes, and gaps for the variables.

HDF5 stores a plain dataset as contiguous bytes whose offset is known once it is allocated. The file is therefore
laid out once, as a sparse file without values. Each checkpoint consists of the same fixed bytes with the
variables' bytes in the gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from det_keras.keras.private_api.models import WeightsStore, current_group
from det_keras.scratch import Scratch


@dataclass(frozen=True)
class Entry:
    """One dataset of the weights file: a variable by its index, or a value that a layer computed."""

    key: str
    variable: int | None
    value: Any = None


@dataclass(frozen=True)
class Group:
    """The datasets of one layer."""

    path: str
    metadata: Mapping[str, str] | None
    entries: tuple[Entry, ...]


class _LayoutStore(WeightsStore):  # type: ignore[misc]
    """Keras's own store, which can also allocate a dataset without writing it."""

    def allocate(self, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Create a dataset and return it; its bytes in the file are not written.

        Args:
            key: name of the dataset in its group.
            shape: shape of the dataset.
            dtype: type of its values.
        """
        group = current_group(self)
        if dtype.kind == "V" or not shape or 0 in shape:
            # Types that HDF5 does not support, and very small datasets, are written in the same way as by Keras.
            self[key] = np.zeros(shape, dtype)
            return group[key]
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        # Do not store times, as in h5py's default: equal values then give equal files.
        settings.set_obj_track_times(False)
        kind, space = h5py.h5t.py_create(dtype, logical=True), h5py.h5s.create_simple(shape)
        h5py.h5d.create(group.id, key.encode(), kind, space, settings)
        return group[key]


def make_template(groups: Sequence[Group], variables: Sequence[Any]) -> list[bytes | int]:
    """Return the weights file as known bytes and, between them, the indices of variables.

    Args:
        groups: the datasets of the file.
        variables: the variables to which the indices in `groups` refer.
    """
    with Scratch("layout") as folder:
        path = Path(folder) / "layout.h5"
        gaps = _lay_out(path, groups, variables)
        return _cut(path, gaps)


def _lay_out(path: Path, groups: Sequence[Group], variables: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Write the file without values and return (offset, size, index of the variable) of each gap, in order."""
    store = _LayoutStore(path, mode="w")
    datasets = []
    try:
        for group in groups:
            target = store.make(group.path, metadata=group.metadata)
            for entry in group.entries:
                if entry.variable is None:
                    target[entry.key] = entry.value
                    continue
                variable = variables[entry.variable]
                name = keras.backend.standardize_dtype(variable.dtype)
                dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
                shape = tuple(int(size) for size in variable.shape)
                datasets.append((store.allocate(entry.key, shape, dtype), entry.variable, dtype))
        store.h5_file.flush()
        return sorted(
            (dataset.id.get_offset(), int(np.prod(dataset.shape, dtype=np.int64)) * dtype.itemsize, index)
            for dataset, index, dtype in datasets
            if dataset.id.get_offset() is not None
        )
    finally:
        store.close()


def _cut(path: Path, gaps: Sequence[tuple[int, int, int]]) -> list[bytes | int]:
    pieces: list[bytes | int] = []
    with path.open("rb") as file:
        for offset, size, index in gaps:
            pieces.append(file.read(offset - file.tell()))
            pieces.append(index)
            file.seek(offset + size)
        pieces.append(file.read())
    return pieces
