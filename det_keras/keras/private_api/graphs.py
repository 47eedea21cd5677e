"""Private names of Keras for the graphs of models: which operation receives what from which."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

# Keras 3.12 to 3.15.
from keras.src.models.functional import Functional


@dataclass(frozen=True)
class Call:
    """One symbolic call of an operation.

    Attributes:
        sources: the operations whose outputs it receives.
        outputs: the symbolic tensors that it returns.
    """

    sources: list[Any]
    outputs: list[Any]


def is_functional(model: Any) -> bool:
    """Return whether a model was made of inputs and outputs."""
    return isinstance(model, Functional)


def operations_of(model: Any) -> list[Any]:
    """Return the operations of a functional model, sources first; besides layers those of `keras.ops`."""
    return list(model._operations)


def nodes_of(model: Any) -> Set[int]:
    """Return the ids of the calls that belong to a functional model; its layers may have others."""
    return {id(node) for group in model._nodes_by_depth.values() for node in group}


def calls_of(operation: Any, among: Set[int] | None = None) -> list[Call]:
    """Return the symbolic calls of an operation, in their order; nothing of an operation without any.

    Args:
        operation: a layer, a model or another operation.
        among: ids of calls, as of `nodes_of`; None for all.
    """
    return [
        Call([tensor._keras_history.operation for tensor in node.input_tensors], list(node.output_tensors))
        for node in getattr(operation, "_inbound_nodes", ())
        if among is None or id(node) in among
    ]


def build_shapes(layer: Any) -> Mapping[str, Any]:
    """Return the arguments with which a layer was built, by the names of its `compute_output_shape`."""
    return dict(getattr(layer, "_build_shapes_dict", None) or {})
