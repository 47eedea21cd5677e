"""The exchange of gradients: each worker's, weighted by its rows, summed before clipping and update.

Horovod's own wrapper for Keras overrides methods that Keras 3 never calls, so that workers drift apart in
silence. Here the optimizer's `apply` itself is replaced on the object: its class, name and config stay
what they are, and a saved model knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from det_keras.keras.distributed.exchange import allgather_rows, sum_over_workers

__all__ = ["GradientExchange", "SharedStep"]

_MARK = "_det_exchange"


class SharedStep:
    """What the workers tell each other with each step, beside gradients.

    Attributes:
        rows: of the current step's global batch that this worker has, a scalar tensor of the graph that is being
            traced; None outside of a step of ours, where every worker counts the same.
        leave: 1 once this worker was asked to leave.
        end: 1 once a callback of this worker ended the training.
        told: how many workers wish to leave, and to end, as of the last step; the same on all of them.
    """

    def __init__(self) -> None:
        self.rows: tf.Tensor | None = None
        self.leave = tf.Variable(0.0, trainable=False)
        self.end = tf.Variable(0.0, trainable=False)
        self.told = tf.Variable([0.0, 0.0], trainable=False)

    def begin(self) -> None:
        """Forget the wishes of an earlier training."""
        self.leave.assign(0.0)
        self.end.assign(0.0)
        self.told.assign([0.0, 0.0])


class GradientExchange:
    """Makes optimizers average gradients over all workers.

    Args:
        step: what goes with each exchange.
        half: send gradients as 16-bit floats (``optimizations.gradient_compression``).
    """

    def __init__(self, step: SharedStep, *, half: bool = False) -> None:
        self._step = step
        self._half = half
        self._installed = 0

    def install(self, optimizer: Any) -> None:
        """Have `optimizer` exchange gradients at the beginning of `apply`; a second call does nothing."""
        if self.is_installed(optimizer):
            return
        number, apply = self._installed, optimizer.apply
        self._installed += 1

        def exchange_and_apply(grads: Sequence[Any], *arguments: Any, **options: Any) -> Any:
            return apply(self.average(list(grads), f"gradients.{number}"), *arguments, **options)

        exchange_and_apply.__dict__[_MARK] = apply
        optimizer.apply = exchange_and_apply

    def remove(self, optimizer: Any) -> None:
        """Let `optimizer` apply gradients as they are."""
        if self.is_installed(optimizer):
            optimizer.apply = optimizer.apply.__dict__[_MARK]

    def is_installed(self, optimizer: Any) -> bool:
        """Tell whether `optimizer` exchanges gradients."""
        return _MARK in getattr(optimizer.apply, "__dict__", {})

    def average(self, gradients: list[Any], name: str) -> list[Any]:
        """Return the gradients of the global batch.

        Args:
            gradients: of this worker's rows: tensors, IndexedSlices, or None where there is none.
            name: of the exchange.
        """
        step = self._step
        rows = tf.constant(1.0) if step.rows is None else tf.cast(step.rows, tf.float32)
        dense = [index for index, one in enumerate(gradients) if isinstance(one, tf.Tensor)]

        def weighted(weight: tf.Tensor) -> list[tf.Tensor]:
            # Not a plain product: what a worker without rows computed may be NaN.
            return [tf.math.multiply_no_nan(gradients[i], tf.cast(weight, gradients[i].dtype)) for i in dense]

        said = [rows, tf.stack([step.leave, step.end])]
        if self._half:
            # In 16 bits the number of rows would lose digits.
            total, wishes = sum_over_workers(said, name=f"{name}.said")
            averaged = sum_over_workers(weighted(rows / total), name=name, half=True)
        else:
            *sums, total, wishes = sum_over_workers([*weighted(rows), *said], name=name)
            averaged = [one / tf.cast(total, one.dtype) for one in sums]
        step.told.assign(wishes)
        result = list(gradients)
        for index, one in zip(dense, averaged, strict=True):
            result[index] = one
        for index, one in enumerate(gradients):
            if isinstance(one, tf.IndexedSlices):
                result[index] = _average_slices(one, rows, total, f"{name}.{index}")
        return result


def _average_slices(
    slices: tf.IndexedSlices, rows: tf.Tensor, total: tf.Tensor, name: str
) -> tf.IndexedSlices:
    weight = tf.cast(rows, slices.dtype)
    values = allgather_rows(tf.math.multiply_no_nan(slices.values, weight), name=f"{name}.values")
    indices = allgather_rows(slices.indices, name=f"{name}.indices")
    return tf.IndexedSlices(values / tf.cast(total, slices.dtype), indices, slices.dense_shape)
