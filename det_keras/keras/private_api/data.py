"""Private names of Keras and TensorFlow for data: the batches that Keras makes, and the stages of a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
from tensorflow.core.framework.model_pb2 import ModelProto, NodeClass

#: Batches that Keras reads of a dataset first, to find the dimensions that vary.
BATCHES_FOR_SPEC: int = data_adapter_utils.NUM_BATCHES_FOR_TENSOR_SPEC


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

    Keras draws two batches of it to see what they look like. It reads a generator one batch ahead, and further if the
    machine is busy; here it is always one.
    """
    adapter = get_data_adapter(source)
    dataset = adapter.get_tf_dataset()
    if inspect.isgenerator(source):
        (unbuffered,) = input_datasets(dataset)
        dataset = unbuffered.prefetch(1)
    return dataset, adapter.num_batches


def is_torch_loader(value: Any) -> bool:
    """Return whether `value` is a PyTorch DataLoader; recognised by name, so that torch is not imported."""
    return bool(is_torch_dataloader(value))


def input_datasets(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Return the datasets that a dataset reads from directly."""
    return list(dataset._inputs())


def creation_mark() -> int:
    """Return a number that is between those of the datasets made before and after this call; see `creation_number`."""
    return int(tf.constant(0)._id)


def creation_number(dataset: tf.data.Dataset) -> int:
    """Return a number that grows with each dataset, or other tensor, that this process makes."""
    return int(variant_of(dataset)._id)


def map_functions(dataset: tf.data.Dataset) -> list[Any]:
    """Return the traced functions of one dataset, those of `map`, `filter` and their like."""
    wrappers: list[Any] = getattr(dataset, "_functions", list)()
    return [wrapper.function for wrapper in wrappers if hasattr(wrapper, "function")]


def cache_filename(dataset: tf.data.Dataset) -> Any:
    """Return the tensor with the file of a `cache`, empty for one in memory; None for another dataset."""
    return getattr(dataset, "_filename", None) if is_cache(dataset) else None


def is_shuffle(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset is a `shuffle` of its input."""
    return type(dataset).__name__ == "_ShuffleDataset"


def is_cache(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset is a `cache` of its input."""
    return type(dataset).__name__ == "CacheDataset"


def variant_of(dataset: tf.data.Dataset) -> tf.Tensor:
    """Return the tensor that stands for a dataset in the graph, for a dataset that wraps it."""
    return dataset._variant_tensor


def repeat_count(dataset: tf.data.Dataset) -> int | None:
    """Return how often a `repeat` gives its elements, -1 for endlessly; None for another dataset."""
    count = getattr(dataset, "_count", None)
    return int(count) if type(dataset).__name__ == "_RepeatDataset" and count is not None else None


def has_buffered_batch(iterator: Any) -> bool | None:
    """Return whether the last stage of a dataset's pipeline holds an element; None if it has no buffer.

    Args:
        iterator: of the dataset. TensorFlow keeps statistics of each stage unless autotuning is off.
    """
    resource = getattr(iterator, "_iterator_resource", None)
    if resource is None:
        # Of several devices, each has an iterator of its own.
        return None
    try:
        content = tf.raw_ops.IteratorGetModelProto(iterator=resource).numpy()
    except tf.errors.OpError:
        return None
    nodes = ModelProto.FromString(content).nodes
    # The first is the iterator itself. TensorFlow adds a prefetch where the last stage does not run ahead.
    last = next(
        (nodes[number] for root in nodes.values() if root.name == "Root" for number in root.inputs), None
    )
    if last is None or not NodeClass.Name(last.node_class).startswith("ASYNC"):
        return None
    return bool(last.buffered_elements > 0)
