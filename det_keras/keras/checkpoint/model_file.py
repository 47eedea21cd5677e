"""Assembles `model.keras` from copied variables, and reads variables back from one.

`model.save` walks the live model and copies every variable on the calling thread. Here the walk is done
once: it records which variable goes to which place of the weights file. From then on the file is written
in the background from copies, and training goes on.
"""

from __future__ import annotations

import io
import logging
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# Keras has no public way to write a weights file from anything but a live model.
from keras.src.saving import saving_lib

from det_keras.core.file_plan import Piece, Slice
from det_keras.keras.checkpoint.weights_template import Entry, Group, make_template

__all__ = ["MODEL_NAME", "WEIGHTS_NAME", "ModelFile", "Place", "map_weights", "read_places"]

logger = logging.getLogger(__name__)

#: The file that `keras.models.load_model` opens.
MODEL_NAME = "model.keras"
#: The weights, inside it or, where there is none, beside the training state.
WEIGHTS_NAME = "model.weights.h5"

# Where a zip's local header keeps the sizes of the name and of the extra field that follow it (APPNOTE 4.3.7).
_LOCAL_HEADER_LENGTHS = 26

#: Where a variable stands in the weights file: path of the group and key in it.
Place = tuple[str, str]


class _Recorder(saving_lib.H5IOStore):  # type: ignore[misc]
    """Takes the place of the weights file during the walk, and notes what would be written where."""

    def __init__(self, index_of: Mapping[int, int]) -> None:
        # The parent would open a file.
        self.mode = "w"
        self.groups: list[tuple[str, Mapping[str, str] | None, list[Entry]]] = []
        self._index_of = index_of

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Mapping[str, str] | None = None) -> _Recorder:
        self.groups.append((path, metadata, []))
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        index = self._index_of.get(id(value))
        entry = Entry(key, index) if index is not None else Entry(key, None, np.array(value))
        self.groups[-1][2].append(entry)

    def close(self) -> None:
        return


class _NoWeights(_Recorder):
    """Takes the place of a weights file where none is wanted: before 3.15 Keras takes no None for that."""

    def __init__(self) -> None:
        super().__init__({})

    def __bool__(self) -> bool:
        return False


class ModelFile:
    """The content of a model's `.keras` file but for the values of its variables.

    A model whose class does not say how it is made (`get_config`) has no such file; its weights alone are
    written then.

    Args:
        model: built and compiled.
        variables: the model's variables, in the order of the copies that `write` will be given.
        optimizers: those whose variables are left out, wherever the model holds them.
    """

    def __init__(self, model: Any, variables: Sequence[Any], optimizers: Iterable[Any] = ()) -> None:
        self._model = model
        self._documents = _serialize(model)
        self._index_of = {id(variable): index for index, variable in enumerate(variables)}
        self._optimizers = [part for optimizer in optimizers for part in _with_inner(optimizer)]
        self._assets = _record_assets(model)
        self._groups = self._walk()
        self._variables = list(variables)
        self._template = make_template(self._groups, self._variables)
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

    def offsets(self, slices: Sequence[Slice]) -> dict[int, int]:
        """Return where in the weights file the values at `slices` begin, in bytes, by index of the variable."""
        found: dict[int, int] = {}
        position = 0
        for piece in self._template:
            if isinstance(piece, int):
                found[piece] = position
                position += slices[piece].size
            else:
                position += len(piece)
        return found

    def refresh(self) -> None:
        """Compute again what layers store besides their variables; call it where the copies are made."""
        if not self._is_plain:
            self._groups = self._walk()
            self._template = make_template(self._groups, self._variables)

    def add_to(
        self, files: dict[str, Sequence[Piece]], slices: Sequence[Slice]
    ) -> dict[str, dict[str, Sequence[Piece]]]:
        """Return the `.keras` archive with the variables' values at `slices`, in their order.

        A model that cannot be described adds its weights to `files` instead.
        """
        weights = [slices[piece] if isinstance(piece, int) else piece for piece in self._template]
        if self._documents is None:
            files[WEIGHTS_NAME] = weights
            return {}
        members: dict[str, Sequence[Piece]] = {
            name: (text.encode(),) for name, text in self._documents.items()
        }
        members.update({name: (content,) for name, content in self._assets.items()})
        return {MODEL_NAME: {**members, WEIGHTS_NAME: weights}}

    def _walk(self) -> tuple[Group, ...]:
        recorder = _Recorder(self._index_of)
        with _saving_nothing(self._optimizers):
            saving_lib._save_state(
                self._model, weights_store=recorder, assets_store=None, inner_path="", visited_saveables=set()
            )
        return tuple(Group(path, metadata, tuple(entries)) for path, metadata, entries in recorder.groups)


def map_weights(directory: Path) -> np.ndarray[Any, Any]:
    """Return the bytes of the weights file in `directory`, mapped rather than read."""
    path = directory / MODEL_NAME
    if not path.exists():
        return np.memmap(directory / WEIGHTS_NAME, np.uint8, "r")
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(WEIGHTS_NAME)
    with path.open("rb") as file:
        file.seek(member.header_offset + _LOCAL_HEADER_LENGTHS)
        name_size, extra_size = struct.unpack("<HH", file.read(4))
        return np.memmap(path, np.uint8, "r", file.tell() + name_size + extra_size, (member.file_size,))


def read_places(directory: Path, places: Mapping[int, Place]) -> dict[int, np.ndarray[Any, Any]]:
    """Return the values at `places` of the model's file in `directory`, by the same keys."""
    if not (directory / MODEL_NAME).exists():
        return _read_store(saving_lib.H5IOStore(directory / WEIGHTS_NAME, mode="r"), places)
    with zipfile.ZipFile(directory / MODEL_NAME) as archive:
        return _read_store(saving_lib.H5IOStore(WEIGHTS_NAME, archive=archive, mode="r"), places)


def _read_store(store: Any, places: Mapping[int, Place]) -> dict[int, np.ndarray[Any, Any]]:
    try:
        return {index: store.get(group)[key] for index, (group, key) in places.items()}
    finally:
        store.close()


def _serialize(model: Any) -> dict[str, str] | None:
    """Return the documents of a `.keras` file by name, None if the model cannot be described."""
    try:
        config, metadata = saving_lib._serialize_model_as_json(model)
    except (NotImplementedError, TypeError, ValueError) as error:
        logger.warning(
            "Checkpoints hold weights but no model.keras, because %s cannot be described: implement `get_config` to "
            "load it elsewhere. Training and resuming are not affected. (%s)",
            type(model).__name__,
            str(error).strip().splitlines()[0],
        )
        return None
    return {"metadata.json": metadata, "config.json": config}


def _with_inner(optimizer: Any) -> list[Any]:
    """Return an optimizer and the one that it wraps, such as that of a LossScaleOptimizer."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, *_with_inner(inner)]


@contextmanager
def _saving_nothing(optimizers: Iterable[Any]) -> Iterator[None]:
    """Keep optimizers out of a walk: their state belongs to the training state, and they would copy it here."""
    silenced = list({id(optimizer): optimizer for optimizer in optimizers}.values())
    for optimizer in silenced:
        optimizer.save_own_variables = lambda store: None
    try:
        yield
    finally:
        for optimizer in silenced:
            del optimizer.save_own_variables


def _record_assets(model: Any) -> dict[str, bytes]:
    """Return the files that layers such as TextVectorization keep beside their variables, by archive name."""
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        store = saving_lib.DiskIOStore("assets", archive=archive, mode="w")
        saving_lib._save_state(
            model, weights_store=_NoWeights(), assets_store=store, inner_path="", visited_saveables=set()
        )
        store.close()
        return {name: archive.read(name) for name in archive.namelist()}
