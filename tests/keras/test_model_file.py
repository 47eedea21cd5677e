"""The weights file of a model, made without reading its variables."""

from __future__ import annotations

import io

import h5py
import keras
import numpy as np

from det_keras.core.file_plan import Slice
from det_keras.keras.checkpoint.model_file import ModelFile


class Counted(keras.layers.Dense):
    """A layer that stores a number besides its variables."""

    count = 0

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["count"] = np.array([self.count])


def stored_count(file, model):
    """Return the number in the weights file of `file`, as a thread that writes it later would find it."""
    slices, content, offset = [], b"", 0
    for variable in model.variables:
        value = np.asarray(variable).tobytes()
        slices.append(Slice(offset, len(value)))
        content, offset = content + value, offset + len(value)
    pieces = file.add_to({}, slices)["model.keras"]["model.weights.h5"]
    data = b"".join(
        piece if isinstance(piece, bytes) else content[piece.offset : piece.offset + piece.size]
        for piece in pieces
    )
    with h5py.File(io.BytesIO(data)) as opened:
        return next(int(opened[name][0]) for name in _names(opened) if name.endswith("/count"))


def _names(opened):
    found = []
    opened.visit(found.append)
    return found


def test_later_values_of_layers_do_not_reach_a_checkpoint_that_is_not_written_yet():
    layer = Counted(2)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile("sgd", "mse")
    layer.count = 1
    earlier = ModelFile(model, model.variables, [model.optimizer])
    layer.count = 2
    later = earlier.refreshed()
    assert [stored_count(file, model) for file in (earlier, later)] == [1, 2]


def test_file_without_such_values_is_made_once():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    file = ModelFile(model, model.variables, [model.optimizer])
    assert file.refreshed() is file
