"""Calls of functions of NumPy arrays, inside and outside of TensorFlow's graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

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
