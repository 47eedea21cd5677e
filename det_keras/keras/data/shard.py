"""This worker's share of each global batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class Shard:
    """A worker's share of each global batch.

    Rows are split as evenly as possible, in order: worker `rank` has rows ``n * rank // size`` to
    ``n * (rank + 1) // size`` of a batch of n.

    Attributes:
        rank: the rank of this worker.
        size: number of workers.
        parts: number of parts of which each has its own gradient: workers, or virtual workers.
        is_whole: whether elements are whole batches, without counts, because there is one worker.
    """

    rank: int = 0
    size: int = 1
    parts: int = 1
    is_whole: bool = True

    def of_rows(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return this worker's part of a batch's row numbers, inside the graph.

        Args:
            rows: integer tensor, (batch,).

        Returns:
            This worker's row numbers, and an int64 pair: the number of its rows that count, and the number of rows of
            the batch. A worker without rows gets the first row and the count 0: it must run the step like the others,
            and its result must be discarded.
        """
        total = tf.shape(rows, tf.int64)[0]
        start, stop = self._bounds(total)
        part = tf.cond(stop > start, lambda: rows[start:stop], lambda: rows[:1])
        return part, tf.stack([stop - start, total])

    def of_batch(self, batch: Any) -> tuple[Any, tf.Tensor]:
        """Return this worker's rows of a batch of any structure, and the same pair of counts as `of_rows`."""
        total = tf.shape(keras.tree.flatten(batch)[0], tf.int64)[0]
        part, count = self.of_rows(tf.range(total))
        return keras.tree.map_structure(lambda array: array[part[0] : part[-1] + 1], batch), count

    def _bounds(self, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return total * self.rank // self.size, total * (self.rank + 1) // self.size
