"""Starts Horovod and exchanges tensors and objects over it. Only this module of the package imports Horovod.

Every worker must make the same calls in the same order, on the training thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from det_keras.cluster_info import WorkerInfo
from det_keras.core.exchange import Exchange
from det_keras.core.heartbeat import beat_for_ever
from det_keras.errors import DetError

# Alignment of TensorFlow's memory.
_ALIGNMENT_BYTES = 64

__all__ = ["HorovodExchange", "allgather_rows", "broadcast", "sum_over_workers"]


class HorovodExchange(Exchange):
    """Starts Horovod and exchanges objects over it.

    Args:
        worker: rank and size of this process, as set by the launcher.

    Raises:
        DetError: Horovod is not installed, or its number of workers differs from the launcher's.
    """

    def __init__(self, worker: WorkerInfo) -> None:
        self._hvd = _horovod()
        # Start the heartbeat before Horovod: ranks wait for each other while Horovod starts.
        beat_for_ever(worker.rank, os.environ)
        self._hvd.init()
        if self._hvd.size() != worker.size:
            raise DetError(
                f"Horovod counts {self._hvd.size()} workers, the launcher said {worker.size}. Start the script with "
                "`python3 -m det_keras.launch.horovod --np N -- python3 train.py` or with horovodrun."
            )
        self._machine = worker.cross_rank

    def allgather(self, value: object, *, local: bool = False) -> list[Any]:
        """Return every worker's `value`, by rank; with `local`, of the workers on this machine only."""
        gathered = self._hvd.allgather_object((self._machine, value))
        return [item for machine, item in gathered if not local or machine == self._machine]

    def close(self) -> None:
        """Do nothing: Horovod runs until the process ends, because a later context may need it."""


def sum_over_workers(tensors: Sequence[tf.Tensor], *, name: str, half: bool = False) -> list[tf.Tensor]:
    """Return the sums of tensors over all workers, exchanged as one flat buffer for each dtype.

    The sums are views of that buffer if TensorFlow supports it: each begins at an aligned address.

    Args:
        tensors: tensors with the same shapes and dtypes on every worker.
        name: name of the exchange; the same on every worker, and unique within a step.
        half: send 32-bit floats as 16-bit floats.
    """
    hvd = _horovod()
    results: list[Any] = list(tensors)
    # Sorted: a set has no fixed order, and every worker must make the calls in the same order.
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=lambda dtype: dtype.name):
        chosen = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat, starts = _flattened([tensors[index] for index in chosen])
        compression = hvd.Compression.fp16 if half and dtype == tf.float32 else hvd.Compression.none
        sent, context = compression.compress(flat)
        received = hvd.allreduce(sent, op=hvd.Sum, name=f"{name}.{dtype.name}")
        total = compression.decompress(received, context)
        for index, start in zip(chosen, starts, strict=True):
            part = tf.slice(total, [start], [tf.size(tensors[index])])
            results[index] = tf.reshape(part, tf.shape(tensors[index]))
            results[index].set_shape(tensors[index].shape)
    return results


def _flattened(tensors: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[Any]]:
    """Return the concatenation of tensors of one dtype, and where each begins."""
    parts: list[tf.Tensor] = []
    starts: list[Any] = []
    end: Any = 0
    for tensor in tensors:
        parts.append(tf.reshape(tensor, [-1]))
        starts.append(end)
        size = tensor.shape.num_elements()
        if size is None:
            end = end + tf.size(tensor)
            continue
        # A slice is a view instead of a copy if its offset and its size are aligned.
        gap = -size % (_ALIGNMENT_BYTES // tensor.dtype.size)
        if gap:
            parts.append(tf.zeros([gap], tensor.dtype))
        end = end + size + gap
    return tf.concat(parts, axis=0), starts


def allgather_rows(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Return the concatenated rows of all workers; workers may have different numbers of rows."""
    return _horovod().allgather(tensor, name=name)


def broadcast(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Return the chief's tensor on every worker."""
    return _horovod().broadcast(tensor, root_rank=0, name=name)


def _horovod() -> Any:
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise DetError(
            "Training on several workers needs Horovod, which cannot be imported "
            f"({error}). Install it as docs/distributed.md says: `uv sync --extra horovod`."
        ) from error
    return hvd
