"""Training data: the batch plan, and one source per kind of input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.data.arrays import ArraySource, rows_of, split_arrays
from det_keras.keras.data.base import DataSource
from det_keras.keras.data.class_weight import with_class_weights
from det_keras.keras.data.generator import GeneratorSource
from det_keras.keras.data.order import plan_seed
from det_keras.keras.data.pydataset import PyDatasetSource
from det_keras.keras.data.shard import Shard
from det_keras.keras.data.tfdata import TfDataSource
from det_keras.keras.data.wrap import (
    ArrayShare,
    DataContext,
    check_data,
    is_generator,
    is_per_worker,
    whole_data,
)

__all__ = [
    "ArrayShare",
    "DataContext",
    "DataSource",
    "Shard",
    "check_data",
    "is_arrays",
    "open_source",
    "plan_seed",
    "split_arrays",
    "whole_data",
]

# Keras's default for arrays without a batch size.
_DEFAULT_BATCH_SIZE = 32


def is_arrays(x: Any) -> bool:
    """Return whether `x` is an array or a structure of arrays, rather than a dataset or a generator."""
    return not isinstance(x, tf.data.Dataset | keras.utils.PyDataset) and not is_generator(x)


def open_source(
    data: tuple[Any, ...],
    *,
    batch_size: int | None,
    shuffle: bool | str,
    seed: int,
    steps_per_epoch: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    workers: DistributedContext | None = None,
    wraps_around: bool = False,
) -> DataSource:
    """Return the source of the data that the user passed to `fit`.

    On several workers its elements are (batch, rows) pairs.

    Args:
        data: (x, y, sample_weight), with None for absent parts.
        batch_size: samples per batch of one worker, for arrays; 32 by default, as in Keras, and with virtual workers
            32 for all workers.
        shuffle: as in `model.fit`.
        seed: the seed of the batch plan.
        steps_per_epoch: batches that count as one epoch; None for one pass over the data.
        class_weight: class number -> weight.
        workers: the workers that share the data; with several, `data` is the whole data (`whole_data`).
        wraps_around: with `steps_per_epoch`, an epoch that reaches the end of the data continues at its beginning.

    Raises:
        TypeError, ValueError: the data is not supported; the message names the reason.
    """
    check_data(data)
    x = data[0]
    shard = Shard()
    if workers is not None:
        shard = Shard(workers.rank, workers.size, workers.size * workers.parts, workers.is_alone)
    if is_arrays(x):
        x, y, sample_weight = _checked_weights(data)
        if class_weight is not None:
            x, y, sample_weight = with_class_weights(class_weight)(x, *(() if y is None else (y,)))
        if batch_size is not None:
            batch_size *= shard.size
        else:
            # With virtual workers, nothing may depend on the number of workers.
            count = 1 if workers is not None and workers.has_virtual else shard.size
            # As in Keras, the samples are divided between the steps.
            rows = rows_of(keras.tree.flatten(x)[0])
            batch_size = count * (
                _DEFAULT_BATCH_SIZE
                if steps_per_epoch is None
                else math.ceil(rows / (steps_per_epoch * count))
            )
        return ArraySource(
            keras.utils.pack_x_y_sample_weight(x, y, sample_weight),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            steps_per_epoch=steps_per_epoch,
            wraps_around=wraps_around,
            shard=shard,
        )
    if batch_size is not None:
        raise ValueError(
            f"A {type(x).__name__} makes its own batches: do not pass `batch_size` (received {batch_size!r})."
        )
    if is_generator(x):
        if class_weight is not None:
            raise ValueError(
                f"`class_weight` cannot be used with a {type(x).__name__}: let it give sample weights."
            )
        if not shard.is_whole:
            raise ValueError(
                f"A {type(x).__name__} cannot be shared by virtual workers: its batches have no order that is known. "
                "Use arrays, a `keras.utils.PyDataset` or a `tf.data.Dataset`."
            )
        return GeneratorSource(x, steps_per_epoch=steps_per_epoch)
    add_weights = with_class_weights(class_weight) if class_weight is not None else None
    if isinstance(x, keras.utils.PyDataset):
        return PyDatasetSource(
            x,
            shuffle=bool(shuffle),
            seed=seed,
            steps_per_epoch=steps_per_epoch,
            wraps_around=wraps_around,
            transform=add_weights,
            shard=shard,
            per_worker_batches=is_per_worker(x),
        )
    dataset = x if add_weights is None else x.map(add_weights, num_parallel_calls=tf.data.AUTOTUNE)
    return TfDataSource(dataset, steps_per_epoch=steps_per_epoch, wraps_around=wraps_around, workers=workers)


def _checked_weights(data: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Return (x, y, sample_weight), with a single sample weight repeated for each output, as in Keras."""
    x, y, sample_weight = [*data, None, None][:3]
    if sample_weight is None:
        return x, y, None
    if y is None:
        raise ValueError("Sample weights need targets: pass `y` as well.")
    if keras.tree.is_nested(y) and not keras.tree.is_nested(sample_weight):
        sample_weight = keras.tree.map_structure(lambda _: sample_weight, y)
    return x, y, sample_weight
