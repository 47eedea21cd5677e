"""Assembles `model.keras` from copied variables, and reads variables from such a file.

`model.save` traverses the live model and copies every variable on the calling thread. Here the model is traversed
once, to record the place of each variable in the weights file. After that the file is written in the background
from copies, while training continues.
"""

from __future__ import annotations

import copy
import io
import logging
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# Keras has no public API to write a weights file without a live model.
from det_keras.checkpoint_format import MODEL_NAME, WEIGHTS_NAME
from det_keras.core.file_plan import Piece, Slice
from det_keras.keras.checkpoint.weights_template import Entry, Group, make_template
from det_keras.keras.private_api.models import AssetStore, WeightsStore, model_documents, save_state

logger = logging.getLogger(__name__)

#: The place of a variable in the weights file: the path of its group, and its key in the group.
Place = tuple[str, str]


class _Recorder(WeightsStore):  # type: ignore[misc]
    """Replaces the weights file while the model is traversed, and records the place of each value."""

    def __init__(self, index_of: Mapping[int, int]) -> None:
        # The constructor of the base class would open a file, so it is not called.
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
    """Replaces a weights file that is not needed; Keras before 3.15 does not accept None for it."""

    def __init__(self) -> None:
        super().__init__({})

    def __bool__(self) -> bool:
        return False


class ModelFile:
    """The content of a model's `.keras` file without the values of its variables.

    A model whose class has no `get_config` has no such file. Only its weights are written.

    Args:
        model: the model, built and compiled.
        variables: the model's variables, in the order of the copies that are written.
        optimizers: optimizers whose variables are omitted, wherever the model holds them.
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
        """Index of each variable that the file stores unchanged -> its place."""
        return {
            entry.variable: (group.path, entry.key)
            for group in self._groups
            for entry in group.entries
            if entry.variable is not None
        }

    def offsets(self, slices: Sequence[Slice]) -> dict[int, int]:
        """Return the offset in bytes of each value at `slices` in the weights file, by index of the variable."""
        found: dict[int, int] = {}
        position = 0
        for piece in self._template:
            if isinstance(piece, int):
                found[piece] = position
                position += slices[piece].size
            else:
                position += len(piece)
        return found

    def has_variables(self, variables: Sequence[Any]) -> bool:
        """Return whether the file was made for the same variables, in the same order."""
        return len(variables) == len(self._variables) and all(
            one is other for one, other in zip(variables, self._variables, strict=True)
        )

    def refreshed(self) -> ModelFile:
        """Return the file with the values that layers now store besides their variables.

        Call it when the variables are copied. It is another object if there are such values: the writer's thread may
        still be about to plan the files of an earlier checkpoint with this one.
        """
        if self._is_plain:
            return self
        new = copy.copy(self)
        new._groups = new._walk()
        new._template = make_template(new._groups, new._variables)
        return new

    def add_to(
        self, files: dict[str, Sequence[Piece]], slices: Sequence[Slice], name: str = MODEL_NAME
    ) -> dict[str, dict[str, Sequence[Piece]]]:
        """Return the `.keras` archive `name` with the variables' values at `slices`, in their order.

        For a model that cannot be serialized, add its weights to `files` instead.
        """
        weights = [slices[piece] if isinstance(piece, int) else piece for piece in self._template]
        if self._documents is None:
            files[f"{name.removesuffix('.keras')}.weights.h5"] = weights
            return {}
        members: dict[str, Sequence[Piece]] = {
            name: (text.encode(),) for name, text in self._documents.items()
        }
        members.update({name: (content,) for name, content in self._assets.items()})
        return {name: {**members, WEIGHTS_NAME: weights}}

    def _walk(self) -> tuple[Group, ...]:
        recorder = _Recorder(self._index_of)
        with _saving_nothing(self._optimizers):
            save_state(self._model, recorder, None)
        return tuple(Group(path, metadata, tuple(entries)) for path, metadata, entries in recorder.groups)


def read_places(directory: Path, places: Mapping[int, Place]) -> dict[int, np.ndarray[Any, Any]]:
    """Return the values at `places` of the model's file in `directory`, by the same keys."""
    if not (directory / MODEL_NAME).exists():
        return _read_store(WeightsStore(directory / WEIGHTS_NAME, mode="r"), places)
    with zipfile.ZipFile(directory / MODEL_NAME) as archive:
        return _read_store(WeightsStore(WEIGHTS_NAME, archive=archive, mode="r"), places)


def _read_store(store: Any, places: Mapping[int, Place]) -> dict[int, np.ndarray[Any, Any]]:
    try:
        return {index: store.get(group)[key] for index, (group, key) in places.items()}
    finally:
        store.close()


def _serialize(model: Any) -> dict[str, str] | None:
    """Return the documents of a `.keras` file by name, None if the model cannot be serialized."""
    try:
        config, metadata = model_documents(model)
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
    """Return an optimizer and, for a wrapper such as LossScaleOptimizer, its inner optimizer."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, *_with_inner(inner)]


@contextmanager
def _saving_nothing(optimizers: Iterable[Any]) -> Iterator[None]:
    """Exclude optimizers while the model is traversed: their state is part of the training state, not of this file."""
    silenced = list({id(optimizer): optimizer for optimizer in optimizers}.values())
    for optimizer in silenced:
        optimizer.save_own_variables = lambda store: None
    try:
        yield
    finally:
        for optimizer in silenced:
            del optimizer.save_own_variables


def _record_assets(model: Any) -> dict[str, bytes]:
    """Return the files that layers such as TextVectorization store besides their variables, by archive name."""
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        store = AssetStore("assets", archive=archive, mode="w")
        save_state(model, _NoWeights(), store)
        store.close()
        return {name: archive.read(name) for name in archive.namelist()}
