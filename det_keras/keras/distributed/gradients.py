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

__all__ = ["GradientExchange", "RowCount"]

_MARK = "_det_exchange"


class RowCount:
    """How many rows of the current step's global batch this worker has.

    Attributes:
        value: a scalar tensor of the graph that is being traced; None outside of a train step of ours, where
            every worker counts the same.
    """

    def __init__(self) -> None:
        self.value: tf.Tensor | None = None


class GradientExchange:
    """Makes optimizers average gradients over all workers.

    Args:
        rows: of the current step.
        half: send gradients as 16-bit floats (``optimizations.gradient_compression``).
    """

    def __init__(self, rows: RowCount, *, half: bool = False) -> None:
        self._rows = rows
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
        rows = tf.constant(1.0) if self._rows.value is None else tf.cast(self._rows.value, tf.float32)
        dense = [index for index, one in enumerate(gradients) if isinstance(one, tf.Tensor)]
        # Not a plain product: what a worker without rows computed may be NaN.
        weighted = [tf.math.multiply_no_nan(gradients[i], tf.cast(rows, gradients[i].dtype)) for i in dense]
        # Rows travel in the buffer of the gradients; compressed, they would lose digits.
        if self._half:
            (total,) = sum_over_workers([rows], name=f"{name}.rows")
            share = tf.cast(rows / total, tf.float32)
            weighted = [
                tf.math.multiply_no_nan(gradients[i], tf.cast(share, gradients[i].dtype)) for i in dense
            ]
            averaged = sum_over_workers(weighted, name=name, half=True) if weighted else []
        else:
            *sums, total = sum_over_workers([*weighted, rows], name=name)
            averaged = [one / tf.cast(total, one.dtype) for one in sums]
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
