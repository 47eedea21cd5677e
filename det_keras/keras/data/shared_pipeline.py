"""Pipelines of several workers: rows are counted, and all workers run the same number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from det_keras.keras.distributed.exchange import sum_over_workers


def share_pipeline(
    dataset: tf.data.Dataset, cardinalities: Sequence[int], *, is_endless: bool
) -> tuple[tf.data.Dataset, int | None]:
    """Let a worker whose data ends before that of the others run steps without rows.

    If all batches have the same size, as with `drop_remainder=True`, the data ends for all where it ends for the first.

    Args:
        dataset: this worker's batches.
        cardinalities: number of batches of each worker, in the order of their ranks; negative if unknown.
        is_endless: the data does not end.

    Returns:
        A dataset of (batch, number of rows that count), and the steps of one pass: None if they are unknown, or if
        the data does not end.

    Raises:
        ValueError: the elements are not dense, and the data ends; or one worker has no batch.
    """
    spec = dataset.element_spec
    is_tuple = isinstance(spec, tuple)

    def with_rows(*parts: Any) -> Any:
        batch = parts if is_tuple else parts[0]
        return batch, tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]

    counted = dataset.map(with_rows)
    if is_endless:
        return counted, None
    has_fixed_size = tf.nest.flatten(spec)[0].shape[:1].is_fully_defined()
    nothing = tf.nest.map_structure(_one_row_of_zeros, spec)
    if min(cardinalities) >= 0:
        steps = min(cardinalities) if has_fixed_size else max(cardinalities)
        if steps == 0:
            raise ValueError(
                f"The tf.data.Dataset of rank {cardinalities.index(0)} is empty: it has 0 batches. Use smaller ones."
            )
        empty = tf.data.Dataset.from_tensors((nothing, tf.constant(0, tf.int64)))
        return counted.concatenate(empty.repeat(steps)).take(steps), steps
    # The length of the data is unknown: after each batch the workers exchange whether they have another one.
    ended = tf.data.Dataset.from_tensors((nothing, tf.constant(-1, tf.int64))).repeat()
    shared = counted.concatenate(ended).map(_with_rows_of_all)
    enough = len(cardinalities) if has_fixed_size else 1
    shared = shared.take_while(lambda batch, rows, left: left >= enough)
    shared = shared.map(lambda batch, rows, left: (batch, tf.maximum(rows, 0)))
    options = tf.data.Options()
    # TensorFlow would run this exchange in parallel and ahead of training, but each answer belongs to the next step.
    options.experimental_optimization.apply_default_optimizations = False
    return shared.with_options(options), None


def _one_row_of_zeros(spec: Any) -> tf.Tensor:
    if not isinstance(spec, tf.TensorSpec):
        raise ValueError(
            f"Several workers cannot share a tf.data.Dataset with a {spec.value_type.__name__}, because some of them "
            "may have to run a step without rows. Make it dense, with `tf.sparse.to_dense` or `to_tensor`."
        )
    return tf.zeros([1, *(size or 1 for size in spec.shape.as_list()[1:])], spec.dtype)


def _with_rows_of_all(batch: Any, rows: tf.Tensor) -> Any:
    (left,) = sum_over_workers([tf.cast(rows >= 0, tf.int32)], name="workers_with_data", ahead=True)
    return batch, rows, left
