"""What a worker knows of the step that is traced or run: its share of the batch, and the sums over all shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from det_keras.keras.distributed.exchange import sum_over_parts, sum_over_workers
from det_keras.keras.distributed.lockstep import Lockstep


@dataclass
class Share:
    """A share of a global batch: that of a worker, or of one of its virtual workers.

    Attributes:
        rows: number of rows that count, a scalar tensor of the graph that is being traced.
        all_rows: number of rows of the whole global batch; None if it is known only after an exchange.
        is_weighted: whether the next gradients are those of a loss that was multiplied by the fraction.
    """

    rows: tf.Tensor
    all_rows: tf.Tensor | None
    is_weighted: bool = False

    @property
    def fraction(self) -> tf.Tensor | None:
        """The share's fraction of the rows; None if it is not known before an exchange."""
        if self.all_rows is None:
            return None
        return tf.cast(self.rows, tf.float32) / tf.cast(self.all_rows, tf.float32)


class SharedStep:
    """The state that the workers exchange with each step, besides gradients.

    Attributes:
        share: the share on which the step runs; None outside a step of `context.fit`, where all workers have the same
            weight.
        lockstep: the virtual workers of this worker, inside a step that they run; None without them.
        leave: 1 once this worker was asked to stop.
        end: 1 once a callback of this worker ended the training.
        requests: the numbers of workers that request to stop, and to end, as of the last step; the same on all workers.
        is_in_fit: whether a `context.fit` prepares the model or trains it.
        is_ending_epoch: whether any worker requested to end when metrics were last summed; None once it was read.
        counts: the rows of this worker in the batch of a loop written by hand, and those of all workers: variables,
            because the script's step is traced once and serves all loops of the script.
    """

    def __init__(self) -> None:
        self.share: Share | None = None
        self.lockstep: Lockstep | None = None
        self._graph: Any = None
        self._names: Counter[str] = Counter()
        self.is_in_fit = False
        self.leave = tf.Variable(0.0, trainable=False)
        self.end = tf.Variable(0.0, trainable=False)
        self.requests = tf.Variable([0.0, 0.0], trainable=False)
        self.is_ending_epoch: bool | None = None
        self.counts = [tf.Variable(1, dtype=tf.int64, trainable=False) for _ in range(2)]

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables that steps use; none of them is state of the training."""
        return [self.leave, self.end, self.requests, *self.counts]

    def begin(self) -> None:
        """Reset the requests of an earlier training."""
        self.leave.assign(0.0)
        self.end.assign(0.0)
        self.requests.assign([0.0, 0.0])

    @contextmanager
    def of(self, share: Share | None, lockstep: Lockstep | None = None) -> Iterator[None]:
        """Trace or run a step inside the block.

        Args:
            share: of this worker; None with virtual workers, which set theirs.
            lockstep: the virtual workers.
        """
        self.share, self.lockstep = share, lockstep
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._names.clear()
        try:
            yield
        finally:
            self.share = self.lockstep = self._graph = None

    def name_of(self, exchange: str) -> str:
        """Return a name for an exchange inside a step: the same on every worker, and unique within the step."""
        self._names[exchange] += 1
        return f"step.{exchange}.{self._names[exchange]}"

    def sum(self, tensors: Sequence[tf.Tensor], exchange: str) -> list[tf.Tensor]:
        """Return sums over the shares of all workers, inside a step.

        Args:
            tensors: of this share; they have the same shapes and dtypes for every share.
            exchange: what the name of the exchange begins with.
        """
        if self.lockstep is None:
            return sum_over_workers(tensors, name=self.name_of(exchange))
        sums: list[tf.Tensor] = self.meet(
            list(tensors), lambda parts: sum_over_parts(parts, name=self.name_of(exchange))
        )
        return sums

    def meet(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Return what `combine` makes of the values of this worker's shares; it is called once."""
        return combine([value]) if self.lockstep is None else self.lockstep.merge(value, combine)

    def learn_fraction(self) -> tf.Tensor:
        """Return the fraction of the rows of the share, after an exchange if it is not known."""
        share = self.share
        assert share is not None
        if (fraction := share.fraction) is not None:
            return fraction
        (all_rows,) = self.sum([share.rows], "rows")
        if tf.executing_eagerly() or tf.compat.v1.get_default_graph() is self._graph:
            # In a branch of the step's graph it would be known in that branch alone.
            share.all_rows = all_rows
        return tf.cast(share.rows, tf.float32) / tf.cast(all_rows, tf.float32)

    @property
    def is_leaving(self) -> bool:
        """Whether any worker had been asked to stop before the last step; the same on all workers."""
        return bool(self.requests.numpy()[0] > 0)

    @property
    def is_ending(self) -> bool:
        """Whether a callback of any worker had ended the training before the last step; the same on all workers."""
        return bool(self.requests.numpy()[1] > 0)
