"""Losses and means of one worker's rows, scaled so that weighting them by rows gives those of the whole batch.

The gradients of a worker are weighted by its rows. This is correct without scaling for a loss that is divided by the
number of rows. A sum is not divided, and a mean by weights or over unmasked steps is divided by what this worker has of
them. These are scaled where Keras reduces the values of a loss, so that the gradients, the metric ``loss`` and the
losses of single outputs are correct. Penalties are the same on all workers and are not scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.private_api.steps import mask_weights, replaced_reduction

_UNREDUCED = (None, "none")


@contextmanager
def shared_losses(step: SharedStep) -> Iterator[None]:
    """Scale the losses and means of numbers that are computed in a step of this worker, inside the block.

    Args:
        step: provides the numbers of rows; what is computed outside of a step is not scaled.
    """

    def replace(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def reduce_and_scale(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: Any = "mean",
            dtype: Any = None,
        ) -> Any:
            loss = reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
            # A loss that returns one number divides by the rows itself.
            if step.share is None or reduction in _UNREDUCED or not tf.convert_to_tensor(values).shape.rank:
                return loss
            factor = _factor(step, sample_weight, mask, reduction)
            return loss if factor is None else loss * tf.cast(factor, loss.dtype)

        return reduce_and_scale

    update_mean = keras.metrics.Mean.update_state

    def update_state(mean: Any, values: Any, sample_weight: Any = None) -> None:
        # A number per batch, such as the loss of one output: its weight is this worker's share of the batch.
        if step.share is not None and sample_weight is None and not tf.convert_to_tensor(values).shape.rank:
            sample_weight = step.learn_fraction()
        update_mean(mean, values, sample_weight=sample_weight)

    keras.metrics.Mean.update_state = update_state
    try:
        with replaced_reduction(replace):
            yield
    finally:
        keras.metrics.Mean.update_state = update_mean


def _factor(step: SharedStep, sample_weight: Any, mask: Any, reduction: str) -> tf.Tensor | None:
    """Return the factor of a reduced loss; None where rows are what it was divided by."""
    if reduction == "sum":
        return tf.math.divide_no_nan(1.0, step.learn_fraction())
    if reduction == "mean_with_sample_weight":
        divided_by = mask_weights(sample_weight, mask)
    else:
        divided_by = mask_weights(None, mask)
    if divided_by is None:
        return None
    assert step.share is not None
    own = tf.reduce_sum(tf.cast(divided_by, tf.float32))
    # A worker without rows runs one that is not counted.
    own = tf.where(step.share.rows > 0, own, tf.zeros_like(own))
    (total,) = step.sum([own], "divisor")
    return tf.math.divide_no_nan(own, total * step.learn_fraction())
