"""What an engine does. Every worker makes the same calls in the same order."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
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


class AloneEngine(Engine):
    """Returns what it receives."""

    name = "alone"

    def sum(self, flat: tf.Tensor, *, name: str, half: bool = False, ahead: bool = False) -> tf.Tensor:
        return flat

    def sum_in_tree(self, flat: tf.Tensor, *, name: str) -> tf.Tensor:
        return flat

    def allgather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return tensor

    def broadcast(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return tensor

    def allgather_object(self, value: object) -> list[Any]:
        return [value]


Array = np.ndarray[Any, Any]


class ArrayCalls:
    """Makes calls in the same order on every worker: inside a graph, in that in which they were traced."""

    def __init__(self) -> None:
        # The name of the last call of each graph: the operation itself would keep its graph alive.
        self._last: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def call(self, function: Callable[[Array], Array], tensor: tf.Tensor, shape: Any) -> tf.Tensor:
        """Call `function` with a tensor's array, now or when the graph runs.

        Args:
            function: receives the array, and returns one of the same dtype.
            tensor: of any shape.
            shape: that of the result, as far as it is known.
        """
        if tf.executing_eagerly():
            return tf.convert_to_tensor(function(tensor.numpy()))
        graph = tensor.graph
        previous = [graph.get_operation_by_name(self._last[graph])] if graph in self._last else []
        with tf.control_dependencies(previous):
            result = tf.numpy_function(function, [tensor], tensor.dtype)
        self._last[graph] = result.op.name
        result.set_shape(shape)
        return result
