"""The private names of Keras and TensorFlow that the engine needs, one function for each use.

`fit` promises the batches that plain Keras makes, and Keras offers no public way to make them from arrays or
generators. Each function names the version in which it was checked; a change there is fixed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

# Keras 3.12 to 3.15.
from keras.src.trainers.data_adapters import (
    array_slicing,
    data_adapter_utils,
    get_data_adapter,
    is_torch_dataloader,
)

# TensorFlow 2.17 to 2.21.
from tensorflow.python.framework import config as tf_config

__all__ = [
    "arrays_in",
    "convert_array",
    "generator_dataset",
    "input_datasets",
    "is_op_determinism_enabled",
    "is_torch_loader",
    "map_arrays",
    "map_functions",
    "num_rows",
    "split_rows",
    "take_rows",
    "tensor_spec",
    "trace_train_step",
    "traced_functions",
]

_SparseRows = array_slicing.TensorflowSparseWrapper


def convert_array(array: Any) -> Any:
    """Return an array as Keras's own adapter converts it: columns, dtypes, sparse and ragged forms."""
    return array_slicing.convert_to_sliceable(array, target_backend="tensorflow")


def map_arrays(function: Callable[[Any], Any], structure: Any) -> Any:
    """Return `structure` with `function` applied to each array; sparse ones are whole arrays, None stays."""

    def visit(part: Any) -> Any:
        if part is None:
            return keras.tree.MAP_TO_NONE
        if isinstance(part, _SparseRows) or not isinstance(part, list | tuple | dict):
            return function(part)
        return None

    return keras.tree.traverse(visit, structure)


def arrays_in(structure: Any) -> list[Any]:
    """Return the arrays of a structure in order, without None; a sparse one is one array."""
    found: list[Any] = []
    map_arrays(lambda array: found.append(array) or array, structure)  # type: ignore[func-returns-value]
    return found


def num_rows(array: Any) -> int:
    """Return the number of samples of an array that `convert_array` returned."""
    return int((array.sparse if isinstance(array, _SparseRows) else array).shape[0])


def take_rows(array: Any, rows: tf.Tensor) -> Any:
    """Return the rows of an array that `convert_array` returned, inside the graph.

    Args:
        array: dense, ragged or sparse.
        rows: int64, (batch,).
    """
    if isinstance(array, _SparseRows):
        return array_slicing.slice_tensorflow_sparse_wrapper(array, rows)
    return tf.gather(array, rows, axis=0)


def split_rows(data: Any, validation_split: float) -> tuple[Any, Any]:
    """Split off the last rows of arrays as `model.fit` does for ``validation_split``."""
    train, validation = array_slicing.train_validation_split(data, validation_split=validation_split)
    return train, validation


def tensor_spec(batches: list[Any]) -> Any:
    """Return the common structure of batches: a dimension in which they differ is None, the first always."""
    return data_adapter_utils.get_tensor_spec(batches)


def generator_dataset(source: Any) -> tuple[tf.data.Dataset, int | None]:
    """Return the dataset that Keras makes of a generator or a DataLoader, and its number of batches if it has one.

    Keras draws two batches of it to see what they look like.
    """
    adapter = get_data_adapter(source)
    return adapter.get_tf_dataset(), adapter.num_batches


def is_torch_loader(value: Any) -> bool:
    """Return whether `value` is a PyTorch DataLoader; told by name, to not import torch."""
    return bool(is_torch_dataloader(value))


def input_datasets(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Return the datasets that a dataset reads from directly."""
    return list(dataset._inputs())


def is_op_determinism_enabled() -> bool:
    """Return whether `tf.config.experimental.enable_op_determinism` was called."""
    return bool(tf_config.is_op_determinism_enabled())


def map_functions(dataset: tf.data.Dataset) -> list[Any]:
    """Return the traced functions of one dataset, those of `map`, `filter` and their like."""
    wrappers: list[Any] = getattr(dataset, "_functions", list)()
    return [wrapper.function for wrapper in wrappers if hasattr(wrapper, "function")]


def trace_train_step(model: Any, element_spec: Any) -> None:
    """Trace the train step of a model for batches of `element_spec`, as its first batch would; nothing is run.

    `model.fit` then finds the trace and makes no other.
    """
    model.make_train_function()
    for function in _closure_of(model.train_function):
        if getattr(getattr(function, "python_function", None), "__name__", "") == "multi_step_on_iterator":
            function.get_concrete_function(tf.data.IteratorSpec(element_spec))
            return
    tf.function(model.train_step).get_concrete_function(element_spec)


def traced_functions(model: Any) -> Iterator[Any]:
    """Yield the traced graphs of a model's train function; nothing while it is not traced.

    Keras 3 keeps its `tf.function` in the closure of `train_function`.
    """
    seen: set[int] = set()
    waiting = [model.train_function]
    while waiting:
        function = waiting.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        if hasattr(function, "_list_all_concrete_functions"):
            # Its graphs have those of the functions that it calls.
            yield from function._list_all_concrete_functions()
        else:
            waiting.extend(_closure_of(function))


def _closure_of(function: Any) -> Iterator[Any]:
    """Yield the callables to which names in a function's closure are bound."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:
            # A name that is not bound yet.
            continue
        if callable(content):
            yield content
