"""What an engine does. Every worker makes the same calls in the same order."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf


class Engine(abc.ABC):
    """Carries tensors and objects between the workers of a job.

    An engine lives until its process ends, because a later context may need it.

    Attributes:
        name: as in `optimizations.collective_engine`.
    """

    name: str

    @abc.abstractmethod
    def sum(self, flat: tf.Tensor, *, name: str, half: bool = False, ahead: bool = False) -> tf.Tensor:
        """Return the sum of a tensor over all workers: the same bits on every worker, in no particular order.

        Args:
            flat: (size,), with the same size and dtype on every worker.
            name: of the exchange: the same on every worker, and unique within a step.
            half: 32-bit floats may be sent as 16-bit floats.
            ahead: a pipeline makes the call, on threads of its own and ahead of the training.
        """

    @abc.abstractmethod
    def sum_in_tree(self, flat: tf.Tensor, *, name: str) -> tf.Tensor:
        """Return the sum of a tensor over all workers: that of `workers.collective.tree_sum`, to the last bit.

        Args:
            flat: (size,), with the same size and dtype on every worker.
            name: as in `sum`.
        """

    @abc.abstractmethod
    def allgather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Return the rows of all workers, by rank; workers may have different numbers of rows.

        Args:
            tensor: (rows, ...), with the same dtype and the same other dimensions on every worker.
            name: as in `sum`.
        """

    @abc.abstractmethod
    def broadcast(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        """Return the chief's tensor on every worker.

        Args:
            tensor: with the same shape and dtype on every worker.
            name: as in `sum`.
        """

    @abc.abstractmethod
    def allgather_object(self, value: object) -> list[Any]:
        """Return every worker's `value`, by rank; it is pickled."""
