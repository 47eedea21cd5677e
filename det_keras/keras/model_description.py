"""The layers of a model as plain values: names, shapes, parameters and connections.

A description reads what the model has already. It builds and calls nothing and traces nothing: each of these may draw
random numbers or create variables that the training would not have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence, Set
from typing import Any

import keras
import tensorflow as tf

from det_keras.keras.private_api.graphs import build_shapes, calls_of, is_functional, nodes_of, operations_of
from det_keras.keras.private_api.models import all_layers, own_layers

#: A description has no more layers, at no greater depth, with no longer names.
MOST_LAYERS, MOST_DEPTH, MOST_NAME = 2000, 12, 200
#: As JSON. A master accepts a longer record, see `det_keras.provenance.capture.MOST_RECORD_BYTES`.
MOST_BYTES = 1 << 19
_MOST_OUTPUTS = 16
# Keras's layers that call something else to compute a shape.
_CALLING = frozenset({"FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper"})


def describe_models(models: Sequence[Any]) -> dict[str, Any]:
    """Return a description of the models of a training, as JSON values.

    Args:
        models: built models; several become groups of one description.

    Returns:
        ``name`` and ``class``; ``kind`` (``sequential``, ``functional``, ``layers``, or ``models`` for several);
        ``trainable`` and ``frozen``, the numbers of parameters; ``bytes`` of all weights; ``count`` of all layers;
        and ``layers``. A layer has a ``name``, a ``class``, the ``shapes`` of its outputs (null for the batch; none if
        they are unknown), its ``dtype``, ``trainable`` and ``frozen``, and ``inputs``: the indices of the layers of the
        same list from which it receives tensors. A group has ``kind`` and ``layers`` as well. ``isCut`` says whether
        layers are left out.
    """
    describer = _Describer()
    weights = _distinct(weight for model in models for weight in model.weights)
    trainable = {id(weight) for model in models for weight in model.trainable_weights}
    description = {
        "name": _name(models[0].name) if len(models) == 1 else "",
        "class": _name(type(models[0]).__name__) if len(models) == 1 else "",
        **(
            describer.group(models[0], 0)
            if len(models) == 1
            else {"kind": "models", "layers": describer.entries(models, 0)}
        ),
        "trainable": _parameters(weight for weight in weights if id(weight) in trainable),
        "frozen": _parameters(weight for weight in weights if id(weight) not in trainable),
        "bytes": sum(math.prod(weight.shape) * _size_of(weight.dtype) for weight in weights),
        "count": describer.count,
        "isCut": describer.is_cut,
    }
    if len(json.dumps(description)) > MOST_BYTES:
        return {**description, "layers": [], "isCut": True}
    return description


def is_complete(model: Any) -> bool:
    """Return whether a model and all layers in it are built."""
    return all(layer.built for layer in all_layers(model))


class _Describer:
    """Describes layers, up to a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self.is_cut = False

    def group(self, layer: Any, depth: int) -> dict[str, Any]:
        """Return the kind and the layers of a model, or of a layer that holds others."""
        if is_functional(layer):
            operations = operations_of(layer)
            return {"kind": "functional", "layers": self.entries(operations, depth, nodes_of(layer))}
        if isinstance(layer, keras.Sequential):
            entries = self.entries(layer.layers, depth)
            for index, entry in enumerate(entries):
                entry["inputs"] = [index - 1] if index else []
            return {"kind": "sequential", "layers": entries}
        return {"kind": "layers", "layers": self.entries(own_layers(layer), depth)}

    def entries(
        self, operations: Iterable[Any], depth: int, among: Set[int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the entries of operations, with the connections between them.

        Args:
            operations: layers, or other operations of a functional model.
            depth: in how many groups they are.
            among: the calls that belong to the functional model; None without one, and without connections.
        """
        operations = list(operations)
        indices = {id(operation): index for index, operation in enumerate(operations)}
        entries = []
        for operation in operations:
            if self.count == MOST_LAYERS:
                self.is_cut = True
                break
            self.count += 1
            calls = calls_of(operation, among)
            sources = [] if among is None else [id(source) for call in calls for source in call.sources]
            inputs = dict.fromkeys(indices[source] for source in sources if source in indices)
            entries.append({**self._entry(operation, depth, calls), "inputs": list(inputs)})
        return entries

    def _entry(self, operation: Any, depth: int, calls: Sequence[Any]) -> dict[str, Any]:
        # Of `keras.ops` there are operations without weights.
        weights = _distinct(getattr(operation, "weights", ()))
        trainable = {id(weight) for weight in getattr(operation, "trainable_weights", ())}
        entry = {
            "name": _name(operation.name),
            "class": _name(type(operation).__name__),
            # A layer that is called several times has one box: as in Keras's summary, the last call counts.
            "shapes": _shapes(calls[-1].outputs) if calls else _shape_by_keras(operation),
            "dtype": _name(calls[-1].outputs[0].dtype if calls else getattr(operation, "compute_dtype", "")),
            "trainable": _parameters(weight for weight in weights if id(weight) in trainable),
            "frozen": _parameters(weight for weight in weights if id(weight) not in trainable),
        }
        if not _has_parts(operation):
            return entry
        if depth == MOST_DEPTH:
            self.is_cut = True
            return entry
        return {**entry, **self.group(operation, depth + 1)}


def _has_parts(operation: Any) -> bool:
    """Return whether an operation is a group: a model, or a layer of the script that holds layers."""
    if not isinstance(operation, keras.Layer):
        return False
    is_group = isinstance(operation, keras.Model) or not _is_of_keras(operation)
    return is_group and bool(own_layers(operation))


def _is_of_keras(layer: Any) -> bool:
    return type(layer).__module__.partition(".")[0] == "keras"


def _shapes(tensors: Iterable[Any]) -> list[list[int | None]]:
    return [_shape(tensor.shape) for tensor in list(tensors)[:_MOST_OUTPUTS]]


def _shape(shape: Any) -> list[int | None]:
    return [None if size is None else int(size) for size in shape]


def _shape_by_keras(layer: Any) -> list[list[int | None]]:
    """Return the output shapes of a layer that was built without symbolic tensors; nothing if they are unknown.

    Only what Keras computes from shapes is used. A layer of a script may do anything, and the default of Keras is to
    call it.
    """
    shapes = build_shapes(layer)
    if not shapes or isinstance(layer, keras.Model):
        return []
    if not all(_is_of_keras(each) and type(each).__name__ not in _CALLING for each in all_layers(layer)):
        return []
    try:
        found = layer.compute_output_shape(**shapes)
        flat = found if isinstance(found, list) else [found]
        return [_shape(shape) for shape in flat[:_MOST_OUTPUTS]]
    except Exception:
        # Not every layer has the method, and some have outputs of another form.
        return []


def _distinct(weights: Iterable[Any]) -> list[Any]:
    return list({id(weight): weight for weight in weights}.values())


def _parameters(weights: Iterable[Any]) -> int:
    return sum(math.prod(weight.shape) for weight in weights)


def _size_of(dtype: Any) -> int:
    return int(tf.as_dtype(dtype).size)


def _name(value: Any) -> str:
    return str(value)[:MOST_NAME]
