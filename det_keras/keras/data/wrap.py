"""`wrap_data`: prepares the user's data for any number of workers.

On one worker it returns the same object, unchanged and without a copy. On several workers arrays become views of
this worker's share with a reference to the whole array, so that `fit` can plan global batches. Datasets are marked,
and `fit` recognizes datasets that were made from a marked one.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.data.arrays import rows_of
from det_keras.keras.private_api.data import convert_array, input_datasets, is_torch_loader

logger = logging.getLogger(__name__)

# On a tf.data.Dataset: whether it was distributed to the workers. On a PyDataset: whether its items are batches of
# one worker.
_MARK = "_det_keras_wrapped"


class ArrayShare(np.ndarray[Any, Any]):
    """This worker's rows of an array; arrays made from it are plain arrays.

    Attributes:
        whole: the array of all workers; None in an array that was made from a share.
    """

    whole: Any = None

    @classmethod
    def of(cls, whole: np.ndarray[Any, Any], rank: int, size: int) -> ArrayShare:
        """Return a view of the rows of one worker; rows are split in order, as evenly as possible.

        Args:
            whole: the array of all workers.
            rank: the rank of the worker.
            size: number of workers.
        """
        rows = len(whole)
        share = whole[rows * rank // size : rows * (rank + 1) // size].view(cls)
        share.whole = whole
        return share


class DataContext:
    """Prepares training data for the workers of a context.

    Args:
        workers: the rank of this process and the number of workers.
    """

    def __init__(self, workers: DistributedContext) -> None:
        self._workers = workers

    def wrap(self, *data: Any, shard: bool = True, per_worker_batches: bool = False) -> Any:
        """Return `data`, ready for `fit`, `evaluate` and `predict` on any number of workers.

        Args:
            data: data as for `model.fit`: x; x and y; x, y and sample weights, each an array or lists and
                dicts of arrays; or one `keras.utils.PyDataset`; or one `tf.data.Dataset`.
                Data that is already wrapped may be passed again.
            shard: for a tf.data.Dataset, False leaves sharding to the caller.
            per_worker_batches: for a PyDataset, its items are batches of one worker, not global ones.

        Returns:
            One object for one argument, a tuple for several. On several workers: arrays as views of this
            worker's rows, a tf.data.Dataset with every `size`-th element, a PyDataset unchanged.

        Raises:
            TypeError: the data has a type that `model.fit` does not support, or is a generator for several workers.
            ValueError: arrays are empty, differ in length, or have fewer samples than there are workers; or they were
                made from a share of this worker, and so from a part of the data; or there are virtual workers, and the
                caller shards the data.
        """
        if not data or data[0] is None:
            raise TypeError("`wrap_data` needs data: x; x and y; a PyDataset; or a tf.data.Dataset.")
        if self._workers.has_virtual and (per_worker_batches or not shard):
            given = "per_worker_batches=True" if per_worker_batches else "shard=False"
            raise ValueError(
                f"`{given}` cannot be used with virtual workers: which rows a part gets would depend on the number of "
                "workers. Wrap global batches, or a dataset of all rows."
            )
        if self._workers.size > 1:
            data = tuple(_unshared(part) for part in data)
        check_data(data, workers=self._workers.size)
        if self._workers.size > 1:
            data = tuple(self._wrap_part(part, shard, per_worker_batches) for part in data)
        return data[0] if len(data) == 1 else data

    def _wrap_part(self, part: Any, shard: bool, per_worker_batches: bool) -> Any:
        if isinstance(part, keras.utils.PyDataset):
            setattr(part, _MARK, per_worker_batches)
            return part
        if isinstance(part, tf.data.Dataset):
            if _is_partly_sharded(part):
                # Sharding a second time would leave each worker a share of its share.
                _warn_of_mixture(part)
                return part
            wrapped = part.shard(self._workers.size, self._workers.shard_index) if shard else part
            setattr(wrapped, _MARK, shard)
            return wrapped
        if part is None:
            return None
        return keras.tree.map_structure(
            lambda array: ArrayShare.of(_to_numpy(array), self._workers.rank, self._workers.size), part
        )


def whole_data(data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the data of several workers as `fit` plans it: whole arrays, unchanged datasets.

    Raises:
        ValueError: a part was not wrapped, or is no longer what `wrap_data` returned.
    """
    return tuple(_whole(part) for part in data)


def is_per_worker(dataset: Any) -> bool:
    """Return whether the items of a wrapped PyDataset are batches of one worker."""
    return bool(getattr(dataset, _MARK, False))


def is_sharded(dataset: Any) -> bool:
    """Return whether a wrapped tf.data.Dataset was made from one that `wrap_data` distributed to the workers."""
    if hasattr(dataset, _MARK):
        return bool(getattr(dataset, _MARK))
    return all(is_sharded(source) for source in input_datasets(dataset) if _derives_from_wrapped(source))


def _is_partly_sharded(dataset: Any) -> bool:
    """Return whether any dataset from which a tf.data.Dataset was made was distributed to the workers."""
    if hasattr(dataset, _MARK):
        return bool(getattr(dataset, _MARK))
    return any(_is_partly_sharded(source) for source in input_datasets(dataset))


def _warn_of_mixture(dataset: Any) -> None:
    if _has_whole_source(dataset):
        logger.warning(
            "This dataset joins one that `wrap_data` dealt out to the workers with one that each worker has whole: "
            "elements that meet by their place differ from those of one worker. Join them first and wrap the result."
        )


def _has_whole_source(dataset: Any) -> bool:
    if hasattr(dataset, _MARK):
        return False
    inputs = input_datasets(dataset)
    return any(map(_has_whole_source, inputs)) if inputs else True


def _unshared(part: Any) -> Any:
    """Return a part of the data with each share replaced by its whole array."""
    if part is None or isinstance(part, tf.data.Dataset | keras.utils.PyDataset):
        return part
    return keras.tree.map_structure(
        lambda one: _whole_array(one) if isinstance(one, ArrayShare) else one, part
    )


def _whole(part: Any) -> Any:
    if part is None:
        return None
    if isinstance(part, keras.utils.PyDataset):
        if not hasattr(part, _MARK):
            raise ValueError(_unwrapped(type(part).__name__))
        return part
    if isinstance(part, tf.data.Dataset):
        if not _derives_from_wrapped(part):
            raise ValueError(_unwrapped("tf.data.Dataset"))
        return part
    return keras.tree.map_structure(_whole_array, part)


def _whole_array(array: Any) -> Any:
    whole = getattr(array, "whole", None)
    if whole is None and isinstance(array, ArrayShare):
        raise ValueError(
            "This array was made from one worker's share of the data, so the rest is not in it. Pass the whole through "
            "`context.wrap_data(...)`; whatever changes it has to come before that."
        )
    if whole is None:
        raise ValueError(_unwrapped("array"))
    return whole


def _unwrapped(what: str) -> str:
    return (
        f"On several workers data has to be wrapped: this {what} was not, and each worker would train on all of it. "
        "Pass it through `context.wrap_data(...)` first."
    )


def _derives_from_wrapped(dataset: Any) -> bool:
    return hasattr(dataset, _MARK) or any(_derives_from_wrapped(source) for source in input_datasets(dataset))


def _to_numpy(array: Any) -> np.ndarray[Any, Any]:
    converted = array if isinstance(array, np.ndarray) else convert_array(array)
    if not hasattr(converted, "__array__"):
        raise TypeError(
            f"A {type(array).__name__} cannot be shared by several workers. Pass a dense array, or a tf.data.Dataset."
        )
    return np.asarray(converted)


def check_data(data: tuple[Any, ...], *, workers: int = 1) -> None:
    """Check that the data is supported.

    Raises:
        TypeError, ValueError: as in `DataContext.wrap`.
    """
    first = data[0]
    if any(inspect.isgeneratorfunction(part) for part in data):
        raise TypeError(
            "A generator function was given. Pass what it returns, a generator; or a keras.utils.PyDataset, which "
            "always resumes exactly."
        )
    if is_generator(first) and workers > 1:
        raise TypeError(
            "A Python generator cannot be shared by several workers. Use a keras.utils.PyDataset, whose "
            "batches have numbers, or tf.data.Dataset.from_generator(...)."
        )
    if is_generator(first) or isinstance(first, tf.data.Dataset | keras.utils.PyDataset):
        if len(data) > 1 and any(part is not None for part in data[1:]):
            raise ValueError(f"A {type(first).__name__} brings its own targets: pass it alone.")
        return
    for part in data[1:]:
        if is_generator(part) or isinstance(part, tf.data.Dataset | keras.utils.PyDataset):
            raise ValueError(
                f"A {type(part).__name__} cannot go with arrays: pass targets as arrays, or all data in one dataset."
            )
    arrays = [array for part in data for array in keras.tree.flatten(part) if array is not None]
    sizes = sorted({rows_of(array) for array in arrays})
    if not sizes:
        raise ValueError(f"The data is empty: a {type(first).__name__} without any array.")
    if len(sizes) > 1:
        raise ValueError(f"All arrays need the same number of samples. Received arrays of {sizes} samples.")
    if sizes[0] == 0:
        raise ValueError("The data is empty: the arrays hold 0 samples.")
    if sizes[0] < workers:
        raise ValueError(
            f"{sizes[0]} samples cannot be shared by {workers} workers. Give more data or use fewer slots."
        )


def is_generator(value: Any) -> bool:
    """Return whether `value` is a generator or a PyTorch DataLoader, which have no numbered batches."""
    return inspect.isgenerator(value) or is_torch_loader(value)
