"""Horovod, with NCCL on GPUs. Only this module of the package imports it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from det_keras.cluster_info import WorkerInfo
from det_keras.errors import DetError
from det_keras.keras.distributed.engines.base import ArrayCalls, Engine
from det_keras.protocol.engines import HOROVOD
from det_keras.workers.collective import tree_sum
from det_keras.workers.heartbeat import beat_for_ever


class HorovodEngine(Engine):
    """Starts Horovod and calls it.

    Args:
        worker: rank and size of this process, as set by the launcher.

    Raises:
        DetError: Horovod cannot be imported, or its number of workers differs from the launcher's.
    """

    name = HOROVOD

    def __init__(self, worker: WorkerInfo) -> None:
        try:
            import horovod.tensorflow as hvd
        except ImportError as error:
            raise DetError(
                f"Horovod cannot be imported ({error}). Compile it for this TensorFlow with `python3 -m "
                "det_keras.launch.horovod_build`, or train without it: `optimizations.collective_engine: builtin`."
            ) from error
        self._hvd: Any = hvd
        self._calls = ArrayCalls()
        # Start the heartbeat before Horovod: ranks wait for each other while Horovod starts.
        beat_for_ever(worker.rank, os.environ)
        hvd.init()
        if hvd.size() != worker.size:
            raise DetError(
                f"Horovod counts {hvd.size()} workers, the launcher said {worker.size}. Start the script with "
                "`python3 -m det_keras.launch.distributed --np N -- python3 train.py` or with horovodrun."
            )

    def sum(self, flat: tf.Tensor, *, name: str, half: bool = False, ahead: bool = False) -> tf.Tensor:
        compression = self._hvd.Compression
        chosen = compression.fp16 if half and flat.dtype == tf.float32 else compression.none
        sent, context = chosen.compress(flat)
        return chosen.decompress(self._hvd.allreduce(sent, op=self._hvd.Sum, name=name), context)

    def sum_in_tree(self, flat: tf.Tensor, *, name: str) -> tf.Tensor:
        # Horovod adds in an order of its own, so all get the rows and add them.
        rows = self.allgather_rows(flat[tf.newaxis], name=name)
        return self._calls.call(lambda rows: np.asarray(tree_sum(list(rows), np.add)), rows, flat.shape)

    def allgather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._hvd.allgather(tensor, name=name)

    def broadcast(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._hvd.broadcast(tensor, root_rank=0, name=name)

    def allgather_object(self, value: object) -> list[Any]:
        found: list[Any] = self._hvd.allgather_object(value)
        return found


def import_problem() -> str | None:
    """Return why Horovod cannot be imported, None if it can."""
    try:
        import horovod.tensorflow  # noqa: F401 - whether it can be imported
    except Exception as error:
        # It was built for another TensorFlow: what is raised depends on which part is missed first.
        return f"{type(error).__name__}: {error}"
    return None
