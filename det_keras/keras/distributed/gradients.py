"""The exchange of gradients: weighted by each worker's rows, and summed before clipping and update.

Horovod's own wrapper for Keras overrides methods that Keras 3 never calls, so that the workers' weights diverge
without an error. Here the optimizer's `apply` is replaced on the instance. Its class, name and config do not change,
and a saved model does not contain the replacement.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from det_keras.keras.distributed.exchange import allgather_rows, sum_over_parts, sum_over_workers
from det_keras.keras.distributed.shared_step import SharedStep

logger = logging.getLogger(__name__)

_MARK = "_det_exchange"


class GradientExchange:
    """Makes optimizers average gradients over all workers.

    Args:
        step: the state that is exchanged together with the gradients.
        half: send gradients as 16-bit floats (``optimizations.gradient_compression``).
    """

    def __init__(self, step: SharedStep, *, half: bool = False) -> None:
        self._step = step
        self._half = half
        self._installed = 0
        self._has_warned = False

    def install(self, optimizer: Any) -> None:
        """Make `optimizer` exchange gradients at the beginning of `apply`; a second call does nothing."""
        if self.is_installed(optimizer):
            return
        number, apply = self._installed, optimizer.apply
        self._installed += 1

        def exchange_and_apply(grads: Sequence[Any], *arguments: Any, **options: Any) -> Any:
            step, name = self._step, f"gradients.{number}"
            if step.lockstep is None:
                return apply(self.average(list(grads), name), *arguments, **options)
            # The share is known here only: what is combined later belongs to all.
            fraction = step.learn_fraction()
            assert step.share is not None
            own = list(grads) if step.share.is_weighted else _weighted_all(list(grads), fraction)
            step.share.is_weighted = False
            return step.meet(own, lambda parts: apply(self.sum_of_parts(parts, name), *arguments, **options))

        exchange_and_apply.__dict__[_MARK] = apply
        optimizer.apply = exchange_and_apply

    def remove(self, optimizer: Any) -> None:
        """Make `optimizer` apply gradients without an exchange."""
        if self.is_installed(optimizer):
            optimizer.apply = optimizer.apply.__dict__[_MARK]

    def is_installed(self, optimizer: Any) -> bool:
        """Return whether `optimizer` exchanges gradients."""
        return _MARK in getattr(optimizer.apply, "__dict__", {})

    def average(self, gradients: list[Any], name: str) -> list[Any]:
        """Return the gradients of the global batch.

        Args:
            gradients: the gradients of this worker's rows: tensors, IndexedSlices, or None for no gradient.
            name: name of the exchange.
        """
        step, share = self._step, self._step.share
        if not step.is_in_fit:
            self._warn()
        dense = [index for index, gradient in enumerate(gradients) if isinstance(gradient, tf.Tensor)]
        own_requests = tf.stack([step.leave, step.end])
        is_weighted = share is not None and share.is_weighted
        # The number of rows of the other workers may be known. Otherwise it is exchanged, and the sum of the gradients
        # is divided by the total afterwards.
        weight = tf.constant(1.0) if share is None else tf.cast(share.rows, tf.float32)
        if share is not None and (fraction := share.fraction) is not None:
            weight, total = fraction, tf.constant(1.0)
            own = [gradients[index] for index in dense]
            sent = own if is_weighted else _weighted(own, weight)
            *averaged, requests = sum_over_workers([*sent, own_requests], name=name, half=self._half)
        elif self._half:
            # A 16-bit float would lose digits of the number of rows.
            total, requests = sum_over_workers([weight, own_requests], name=f"{name}.said")
            sent = _weighted([gradients[index] for index in dense], weight / total)
            averaged = sum_over_workers(sent, name=name, half=True)
        else:
            sent = _weighted([gradients[index] for index in dense], weight)
            *sums, total, requests = sum_over_workers([*sent, weight, own_requests], name=name)
            averaged = [added / tf.cast(total, added.dtype) for added in sums]
        # Every worker receives the same sums, so all act on a request at the same later boundary.
        step.requests.assign(requests)
        result = list(gradients)
        for index, gradient in zip(dense, averaged, strict=True):
            result[index] = gradient
        for index, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                own_weight = tf.constant(1.0) if is_weighted else weight
                result[index] = _average_slices(gradient, own_weight, total, f"{name}.{index}")
        if share is not None:
            share.is_weighted = False
        return result

    def sum_of_parts(self, parts: list[list[Any]], name: str) -> list[Any]:
        """Return the gradients of the global batch from those of this worker's virtual workers.

        The sums are those of one binary tree over all virtual workers, whichever worker runs them.

        Args:
            parts: for each virtual worker its gradients, weighted with its fraction of the rows.
            name: name of the exchange.
        """
        step, result = self._step, list(parts[0])
        dense = [index for index, gradient in enumerate(result) if isinstance(gradient, tf.Tensor)]
        own_requests = tf.stack([step.leave, step.end])
        sent = [
            # The requests are those of the worker, so one of its parts has them.
            [*(part[index] for index in dense), own_requests if part is parts[0] else tf.zeros_like(own_requests)]
            for part in parts
        ]  # fmt: skip
        *sums, requests = sum_over_parts(sent, name=name)
        step.requests.assign(requests)
        for index, gradient in zip(dense, sums, strict=True):
            result[index] = gradient
        for index, gradient in enumerate(result):
            if isinstance(gradient, tf.IndexedSlices):
                # In the order of the virtual workers, so that rows of the same index are added in the same order.
                values, indices = (
                    allgather_rows(tf.concat(pieces, 0), name=f"{name}.{index}.{what}")
                    for what, pieces in (
                        ("values", [part[index].values for part in parts]),
                        ("indices", [part[index].indices for part in parts]),
                    )
                )
                result[index] = tf.IndexedSlices(values, indices, gradient.dense_shape)
        return result

    def _warn(self) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "This training does not run in `context.fit`: gradients are averaged over the workers, each of which "
            "counts the same, and nothing else is shared. Weights begin as each worker made them, metrics are those "
            "of one worker, and nothing can be resumed. Use `context.fit(model, ...)` in place of `model.fit(...)`."
        )


def _weighted(gradients: list[tf.Tensor], weight: tf.Tensor) -> list[tf.Tensor]:
    # Not a plain product: the gradients of a worker without rows may be NaN, and its weight is 0.
    return [tf.math.multiply_no_nan(gradient, tf.cast(weight, gradient.dtype)) for gradient in gradients]


def _weighted_all(gradients: list[Any], weight: tf.Tensor) -> list[Any]:
    result: list[Any] = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            (values,) = _weighted([gradient.values], weight)
            result.append(tf.IndexedSlices(values, gradient.indices, gradient.dense_shape))
        else:
            result.extend([None] if gradient is None else _weighted([gradient], weight))
    return result


def _average_slices(
    slices: tf.IndexedSlices, weight: tf.Tensor, total: tf.Tensor, name: str
) -> tf.IndexedSlices:
    (weighted,) = _weighted([slices.values], weight)
    values = allgather_rows(weighted, name=f"{name}.values")
    indices = allgather_rows(slices.indices, name=f"{name}.indices")
    return tf.IndexedSlices(values / tf.cast(total, slices.dtype), indices, slices.dense_shape)
