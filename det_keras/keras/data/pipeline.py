"""The state of a tf.data pipeline besides the position of its iterator: caches, and variables that functions write.

The checkpoint of an iterator contains neither. Both are determined by the state at the beginning of a pass, so a
resumed run reads the pass again from there; see `tfdata`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from det_keras.keras.private_api.data import (
    cache_filename,
    input_datasets,
    is_cache,
    is_shuffle,
    map_functions,
    repeat_count,
)
from det_keras.keras.private_api.steps import is_op_determinism_enabled, variable_dtype

logger = logging.getLogger(__name__)

_WRITING_OPS = ("Assign", "Rng", "Stateful", "ResourceApply", "ResourceScatter")


class Pipeline:
    """The stages of a `tf.data.Dataset`.

    Args:
        dataset: the last stage.

    Attributes:
        has_memory_cache: it has a ``cache()`` in memory, which the first pass fills in the order of that pass.
        draws_within_pass: shuffle seeds are drawn more than once per pass, by a shuffle before a finite ``repeat`` or
            inside ``interleave`` or ``flat_map``.
        shuffles: ids of the stages that draw a seed for each iterator.
        shuffles_twice: a shuffle reads from another one, which draws its seed only when the first element is read.
        runs_python: it runs Python code, which may have state that cannot be read.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        stages = list(_stages(dataset, set()))
        self.has_memory_cache = any(_is_memory_cache(stage) for stage in stages)
        self.draws_within_pass = any(_repeats(stage) and _shuffles(stage) for stage in stages)
        self.shuffles = frozenset(id(stage) for stage in stages if is_shuffle(stage))
        self.shuffles_twice = any(
            is_shuffle(stage) and any(_shuffles(source) for source in input_datasets(stage))
            for stage in stages
        )
        self.runs_python = False
        self._variables: dict[int, Any] = {}
        for stage in stages:
            for function in map_functions(stage):
                self._look_at(stage, function)

    def variables(self) -> list[Any]:
        """Return the values of the variables that functions of the pipeline write, as JSON."""
        return [_read(handle).tolist() for handle in self._variables.values()]

    def assign(self, values: Sequence[Any]) -> None:
        """Restore the values that `variables` returned."""
        for handle, value in zip(self._variables.values(), values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value, variable_dtype(handle)))

    def _look_at(self, stage: tf.data.Dataset, function: Any) -> None:
        ops = _ops(function)
        self.draws_within_pass |= any(op.startswith("ShuffleDataset") for op in ops)
        self.runs_python |= any("PyFunc" in op for op in ops)
        if not any(op.startswith(_WRITING_OPS) for op in ops):
            return
        handles = [
            tensor
            for tensor in function.captured_inputs
            if tensor.dtype == tf.resource and _is_variable(tensor)
        ]
        self._variables.update({id(handle): handle for handle in handles})
        if handles and "ParallelMap" in type(stage).__name__ and not is_op_determinism_enabled():
            logger.warning(
                "A function of this tf.data pipeline draws random numbers in parallel calls: which batch gets which "
                "number differs from run to run. Leave out `num_parallel_calls`, or set "
                "`reproducibility.deterministic_ops: true`."
            )


def _stages(dataset: tf.data.Dataset, seen: set[int]) -> Iterator[tf.data.Dataset]:
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    yield dataset
    for source in input_datasets(dataset):
        yield from _stages(source, seen)


def _is_memory_cache(stage: tf.data.Dataset) -> bool:
    filename = cache_filename(stage)
    return filename is not None and not filename.numpy()


def _repeats(stage: tf.data.Dataset) -> bool:
    return repeat_count(stage) not in (None, 1)


def _shuffles(stage: tf.data.Dataset) -> bool:
    """Return whether an iterator of `stage` reads a shuffle again; a shuffle before a cache is not read again."""
    if is_cache(stage):
        return False
    return is_shuffle(stage) or any(_shuffles(source) for source in input_datasets(stage))


def _ops(function: Any) -> set[str]:
    """Return the types of all ops that a traced function runs, including those of the functions that it calls."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return {node.op for node in nodes}


def _is_variable(handle: Any) -> bool:
    return variable_dtype(handle) is not None


def _read(handle: Any) -> np.ndarray[Any, Any]:
    return np.asarray(tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable_dtype(handle)))
