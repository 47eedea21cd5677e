"""Finds random ops in the train step whose state cannot be saved, to warn that a resumed run may differ."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any

from det_keras.keras.private_api.models import all_layers
from det_keras.keras.private_api.steps import ops_of, traced_functions, traced_names

logger = logging.getLogger(__name__)

# Their state is a counter inside TensorFlow. The state of a `tf.random.Generator` or a Keras seed is a variable.
_STATEFUL = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)


def warn_of_stateful_random_ops(model: Any) -> None:
    """Warn about layers that use stateful `tf.random` ops in the traced train step; call it after the first step."""
    found = sorted(_stateful_ops(model))
    if not found:
        return
    names = {layer.name for layer in all_layers(model)}
    places = {_layer_of(name, names) or name for name in found}
    logger.warning(
        "The train step draws random numbers with `tf.random` ops, in %s. Their state cannot be saved: a resumed run "
        "draws other numbers. Use `keras.random` with a `keras.random.SeedGenerator` that the layer or model holds, "
        "such as `keras.random.normal(shape, seed=self.seeds)`: that resumes exactly.",
        ", ".join(f"`{place}`" for place in sorted(places)),
    )


def warn_of_random_functions(before: Collection[str]) -> None:
    """Warn about functions with stateful `tf.random` ops that were traced since; call it after the first batch.

    Args:
        before: the functions that had been traced before the batch, as `traced_names` returned them.
    """
    found = sorted(name for name in traced_names() - frozenset(before) if ops_of(name) & _STATEFUL)
    if not found:
        return
    names = {re.sub(r"^__(inference|forward|backward)_(.*?)(_\d+)+$", r"\2", name) for name in found}
    logger.warning(
        "The first batch traced a `tf.function` that draws random numbers with `tf.random` ops: %s. Its state cannot "
        "be saved: a resumed run draws other numbers. Use `keras.random` with a `keras.random.SeedGenerator` that is "
        "tracked, or a tracked `tf.random.Generator`: that resumes exactly.",
        ", ".join(f"`{name}`" for name in sorted(names)),
    )


def _stateful_ops(model: Any) -> set[str]:
    """Return the names of all stateful random ops in the traced train step."""
    found: set[str] = set()
    seen: set[str] = set()
    for function in traced_functions(model):
        if function.function_def.signature.name in seen:
            continue
        graph = function.graph.as_graph_def()
        nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
        seen |= {inner.signature.name for inner in graph.library.function}
        found |= {node.name for node in nodes if node.op in _STATEFUL}
    return found


def _layer_of(op_name: str, layer_names: set[str]) -> str | None:
    """Return the innermost layer whose name scope contains an op; Keras makes a scope of each layer's name.

    TensorFlow appends a number to the name of a scope that is entered again.
    """
    for scope in reversed(op_name.split("/")):
        for name in (scope, re.sub(r"_\d+$", "", scope)):
            if name in layer_names:
                return name
    return None
