"""The exchange of gradients: weighted by each worker's rows, and summed before clipping and update.

Horovod's own wrapper for Keras overrides methods that Keras 3 never calls, so that the workers' weights diverge
without an error. Here the optimizer's `apply` is replaced on the instance. Its class, name and config do not change,
and a saved model does not contain the replacement.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from det_keras.keras.distributed.exchange import allgather_rows, sum_over_workers

__all__ = ["GradientExchange", "SharedStep"]

logger = logging.getLogger(__name__)

_MARK = "_det_exchange"


class SharedStep:
    """The state that the workers exchange with each step, besides gradients.

    Attributes:
        rows: number of rows of the current global batch on this worker, a scalar tensor of the graph that is being
            traced; None outside a step of `context.fit`, where all workers have the same weight.
        all_rows: number of rows of the whole global batch; None if it is known only after an exchange.
        is_weighted: whether the next gradients are those of a loss that was multiplied by `share`.
        leave: 1 once this worker was asked to stop.
        end: 1 once a callback of this worker ended the training.
        requests: the numbers of workers that request to stop, and to end, as of the last step; the same on all workers.
        is_in_fit: whether a `context.fit` prepares the model or trains it.
        is_ending_epoch: whether any worker requested to end when metrics were last summed; None once it was read.
    """

    def __init__(self) -> None:
        self.rows: tf.Tensor | None = None
        self.all_rows: tf.Tensor | None = None
        self.is_weighted = False
        self._graph: Any = None
        self._names: Counter[str] = Counter()
        self.is_in_fit = False
        self.leave = tf.Variable(0.0, trainable=False)
        self.end = tf.Variable(0.0, trainable=False)
        self.requests = tf.Variable([0.0, 0.0], trainable=False)
        self.is_ending_epoch: bool | None = None

    def begin(self) -> None:
        """Reset the requests of an earlier training."""
        self.leave.assign(0.0)
        self.end.assign(0.0)
        self.requests.assign([0.0, 0.0])

    @contextmanager
    def of(self, rows: tf.Tensor, all_rows: tf.Tensor | None) -> Iterator[None]:
        """Trace or run a step on a share of a global batch inside the block.

        Args:
            rows: number of rows on this worker.
            all_rows: number of rows of the whole global batch; None if it is not known.
        """
        self.rows, self.all_rows = rows, all_rows
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._names.clear()
        try:
            yield
        finally:
            self.rows = self.all_rows = self._graph = None
            self.is_weighted = False

    def name_of(self, exchange: str) -> str:
        """Return a name for an exchange inside a step: the same on every worker, and unique within the step."""
        self._names[exchange] += 1
        return f"step.{exchange}.{self._names[exchange]}"

    def learn_share(self) -> tf.Tensor:
        """Return this worker's fraction of the rows of the current step, after an exchange if it is not known."""
        assert self.rows is not None
        if (share := self.share) is not None:
            return share
        (all_rows,) = sum_over_workers([self.rows], name=self.name_of("rows"))
        if tf.executing_eagerly() or tf.compat.v1.get_default_graph() is self._graph:
            # In a branch of the step's graph it would be known in that branch alone.
            self.all_rows = all_rows
        return tf.cast(self.rows, tf.float32) / tf.cast(all_rows, tf.float32)

    @property
    def share(self) -> tf.Tensor | None:
        """This worker's fraction of the rows of the current step; None if it is not known before the exchange."""
        if self.rows is None or self.all_rows is None:
            return None
        return tf.cast(self.rows, tf.float32) / tf.cast(self.all_rows, tf.float32)

    @property
    def is_leaving(self) -> bool:
        """Whether any worker had been asked to stop before the last step; the same on all workers."""
        return bool(self.requests.numpy()[0] > 0)

    @property
    def is_ending(self) -> bool:
        """Whether a callback of any worker had ended the training before the last step; the same on all workers."""
        return bool(self.requests.numpy()[1] > 0)


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
            return apply(self.average(list(grads), f"gradients.{number}"), *arguments, **options)

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
        step = self._step
        if not step.is_in_fit:
            self._warn()
        dense = [index for index, gradient in enumerate(gradients) if isinstance(gradient, tf.Tensor)]
        own_requests = tf.stack([step.leave, step.end])
        # The number of rows of the other workers may be known. Otherwise it is exchanged, and the sum of the gradients
        # is divided by the total afterwards.
        weight = tf.constant(1.0) if step.rows is None else tf.cast(step.rows, tf.float32)
        if (share := step.share) is not None:
            weight, total = share, tf.constant(1.0)
            own = [gradients[index] for index in dense]
            sent = own if step.is_weighted else _weighted(own, weight)
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
                own_weight = tf.constant(1.0) if step.is_weighted else weight
                result[index] = _average_slices(gradient, own_weight, total, f"{name}.{index}")
        step.is_weighted = False
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


def _average_slices(
    slices: tf.IndexedSlices, weight: tf.Tensor, total: tf.Tensor, name: str
) -> tf.IndexedSlices:
    (weighted,) = _weighted([slices.values], weight)
    values = allgather_rows(weighted, name=f"{name}.values")
    indices = allgather_rows(slices.indices, name=f"{name}.indices")
    return tf.IndexedSlices(values / tf.cast(total, slices.dtype), indices, slices.dense_shape)
