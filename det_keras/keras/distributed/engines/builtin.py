"""The engine that needs nothing installed: `workers/collective.py`, called from TensorFlow's graphs."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from det_keras.cluster_info import ChiefInfo, WorkerInfo
from det_keras.errors import DetError
from det_keras.keras.distributed.engines.base import ArrayCalls, Engine
from det_keras.protocol.engines import BUILTIN
from det_keras.workers.collective import Collective, tree_sum
from det_keras.workers.exchange import Star
from det_keras.workers.heartbeat import beat_for_ever
from det_keras.workers.inherited import ENDS_VARIABLE, Ends


class BuiltinEngine(Engine):
    """Exchanges through shared memory, and between machines over one connection.

    Args:
        worker: rank and size of this process, as set by the launcher.
        environ: with what this process inherited from the launcher.

    Raises:
        DetError: this process was not started by the launcher, or another machine cannot be reached.
    """

    name = BUILTIN

    def __init__(self, worker: WorkerInfo, environ: Mapping[str, str]) -> None:
        if ENDS_VARIABLE not in environ:
            raise DetError(
                "The builtin engine needs the launcher: `python3 -m det_keras.launch.distributed --np N -- python3 "
                "train.py`. A script that horovodrun starts trains with Horovod."
            )
        channels = Ends.from_text(environ[ENDS_VARIABLE])
        # Ranks wait for each other while they start.
        beat_for_ever(worker.rank, os.environ)
        self._collective, self._pipelines = (_collective(worker, ends, environ) for ends in channels)
        counts = self._collective.gather(str(worker.local_size).encode(), "local sizes")
        # The sums of machines are then those of the same tree.
        self._is_even = len(set(counts)) == 1 and worker.local_size.bit_count() == 1
        self._calls = ArrayCalls()

    def sum(self, flat: tf.Tensor, *, name: str, half: bool = False, ahead: bool = False) -> tf.Tensor:
        # On one machine, 16-bit floats would cost digits and time, and save nothing.
        channel = self._pipelines if ahead else self._collective
        return self._calls.call(lambda array: channel.sum(array, name), flat, flat.shape)

    def sum_in_tree(self, flat: tf.Tensor, *, name: str) -> tf.Tensor:
        if self._is_even:
            return self.sum(flat, name=name)

        def add(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            rows = [np.frombuffer(row, array.dtype) for row in self._collective.gather(array.tobytes(), name)]
            return np.asarray(tree_sum(rows, np.add))

        return self._calls.call(add, flat, flat.shape)

    def allgather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        def gather(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            contents = self._collective.gather(array.tobytes(), name)
            return np.frombuffer(b"".join(contents), array.dtype).reshape(-1, *array.shape[1:])

        return self._calls.call(gather, tensor, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        def broadcast(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            content = self._collective.gather(array.tobytes(), name)[0]
            return np.frombuffer(content, array.dtype).reshape(array.shape)

        return self._calls.call(broadcast, tensor, tensor.shape)

    def allgather_object(self, value: object) -> list[Any]:
        # Only processes that the same launcher started can reach the memory.
        return [pickle.loads(content) for content in self._collective.gather(pickle.dumps(value), "objects")]


def _collective(worker: WorkerInfo, ends: Ends, environ: Mapping[str, str]) -> Collective:
    is_single = worker.size == worker.local_size
    machines = None if is_single or worker.local_rank > 0 else _connect(worker, ends, environ)
    return Collective(worker.local_rank, worker.local_size, ends, is_single=is_single, machines=machines)


def _connect(worker: WorkerInfo, ends: Ends, environ: Mapping[str, str]) -> Star:
    chief = ChiefInfo.from_environment(environ)
    if not chief.ip or not chief.key:
        raise DetError("Several machines need DET_CHIEF_IP and DET_CHIEF_KEY, which the launcher sets.")
    listener = socket.socket(fileno=ends.listener) if ends.listener >= 0 else None
    return Star(
        worker.cross_rank, worker.cross_size, chief.ip, ends.port, chief.key.encode(), listener=listener
    )
