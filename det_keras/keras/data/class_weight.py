"""Class weights as sample weights, the same for every kind of input.

Source: the documented behaviour of `class_weight` in `keras.Model.fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf


def class_weights(y: tf.Tensor, weights: Mapping[int, float]) -> tf.Tensor:
    """Return the weight of each sample by its class.

    Args:
        y: class numbers, (samples,) or (samples, 1), or one-hot or probabilities, (samples, classes).
        weights: class number -> weight; a class without an entry has the weight 1.

    Returns:
        Float tensor, (samples,).
    """
    table = tf.constant(
        [float(weights.get(number, 1.0)) for number in range(max(weights) + 1)], keras.config.floatx()
    )
    y = tf.convert_to_tensor(y)
    if y.shape.rank is not None and y.shape.rank >= 2:
        numbers = tf.argmax(y, axis=-1) if (y.shape[-1] or 1) > 1 else tf.squeeze(y, axis=-1)
    else:
        numbers = y
    numbers = tf.cast(tf.round(numbers) if numbers.dtype.is_floating else numbers, tf.int64)
    known = tf.logical_and(numbers >= 0, numbers < tf.shape(table, tf.int64)[0])
    return tf.where(known, tf.gather(table, tf.where(known, numbers, 0)), tf.ones_like(numbers, table.dtype))


def with_class_weights(weights: Mapping[int, float]) -> Callable[..., Any]:
    """Return a function for `tf.data.Dataset.map` that adds class weights to (x, y)."""

    def add(*batch: Any) -> Any:
        if len(batch) == 1 and isinstance(batch[0], tuple):
            batch = batch[0]
        if len(batch) > 2:
            raise ValueError("`class_weight` and sample weights cannot be given together.")
        if len(batch) < 2 or tf.nest.is_nested(batch[1]):
            raise ValueError("`class_weight` needs a single output with targets.")
        return batch[0], batch[1], class_weights(batch[1], weights)

    return add
