"""The engine of a single worker, which has nothing to exchange."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from det_keras.keras.distributed.engines.base import Engine


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
