"""Exchanges between workers, over the engine of this process.

Every worker must make the same calls in the same order, on the training thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from det_keras.cluster_info import WorkerInfo
from det_keras.keras.distributed.engines.base import AloneEngine, Engine
from det_keras.keras.distributed.engines.builtin import BuiltinEngine
from det_keras.keras.distributed.engines.horovod import HorovodEngine, import_problem
from det_keras.protocol.engines import AUTO, BUILTIN, HOROVOD, named_engine
from det_keras.workers.collective import tree_sum
from det_keras.workers.exchange import Exchange
from det_keras.workers.inherited import ENDS_VARIABLE

# Alignment of TensorFlow's memory.
_ALIGNMENT_BYTES = 64

logger = logging.getLogger(__name__)

_started: list[Engine] = []
_ALONE = AloneEngine()


class EngineExchange(Exchange):
    """Starts the engine that the launcher chose, unless it runs, and exchanges objects over it.

    Args:
        worker: rank and size of this process, as set by the launcher.

    Raises:
        DetError: the engine cannot be started.
    """

    def __init__(self, worker: WorkerInfo) -> None:
        if not _started:
            _started.append(_start(worker, os.environ))
        # The first rank of a machine names it: on machines with unequal numbers of ranks, `cross_rank` does not.
        self._machine = worker.rank - worker.local_rank

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return _engine().name

    def allgather(self, value: object, *, local: bool = False) -> list[Any]:
        """Return every worker's `value`, by rank; with `local`, of the workers on this machine only."""
        gathered = _engine().allgather_object((self._machine, value))
        return [item for machine, item in gathered if not local or machine == self._machine]

    def close(self) -> None:
        """Do nothing: an engine runs until the process ends, because a later context may need it."""


def sum_over_workers(
    tensors: Sequence[tf.Tensor], *, name: str, half: bool = False, ahead: bool = False
) -> list[tf.Tensor]:
    """Return the sums of tensors over all workers, exchanged as one flat buffer for each dtype.

    The sums are views of that buffer if TensorFlow supports it: each begins at an aligned address.

    Args:
        tensors: tensors with the same shapes and dtypes on every worker.
        name: name of the exchange; the same on every worker, and unique within a step.
        half: 32-bit floats may be sent as 16-bit floats.
        ahead: a pipeline makes the call, on threads of its own and ahead of the training.
    """
    engine = _engine()
    return _flat_sums(
        tensors, lambda flat, dtype: engine.sum(flat, name=f"{name}.{dtype}", half=half, ahead=ahead)
    )


def sum_over_parts(parts: Sequence[Sequence[tf.Tensor]], *, name: str) -> list[tf.Tensor]:
    """Return the sums of tensors over all parts of all workers, with the bits of one binary tree over all parts.

    Args:
        parts: for each part of this worker, tensors with the same shapes and dtypes for every part.
        name: as in `sum_over_workers`.
    """
    own = [tree_sum(column, tf.add) for column in zip(*parts, strict=True)]
    if not _started:
        return own
    return _flat_sums(own, lambda flat, dtype: _engine().sum_in_tree(flat, name=f"{name}.{dtype}"))


def _flat_sums(tensors: Sequence[tf.Tensor], add: Callable[[tf.Tensor, str], tf.Tensor]) -> list[tf.Tensor]:
    """Return the tensors after `add` has replaced the flat buffer of each dtype by a sum."""
    results: list[Any] = list(tensors)
    # Sorted: a set has no fixed order, and every worker must make the calls in the same order.
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=lambda dtype: dtype.name):
        chosen = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat, starts = _flattened([tensors[index] for index in chosen])
        total = add(flat, dtype.name)
        for index, start in zip(chosen, starts, strict=True):
            results[index] = _view(total, start, tensors[index])
    return results


def _view(flat: tf.Tensor, start: Any, like: tf.Tensor) -> tf.Tensor:
    part = tf.reshape(tf.slice(flat, [start], [tf.size(like)]), tf.shape(like))
    part.set_shape(like.shape)
    return part


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
    return _engine().allgather_rows(tensor, name=name)


def broadcast(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Return the chief's tensor on every worker."""
    return _engine().broadcast(tensor, name=name)


def _engine() -> Engine:
    return _started[0] if _started else _ALONE


def _start(worker: WorkerInfo, environ: Mapping[str, str]) -> Engine:
    name = named_engine(environ) or AUTO
    # A script that horovodrun started has no ends.
    if name == HOROVOD or (name == AUTO and ENDS_VARIABLE not in environ):
        return HorovodEngine(worker)
    builtin = BuiltinEngine(worker, environ)
    if name == BUILTIN:
        return builtin
    # The launcher saw Horovod's package. Whether it can be imported is known only here, and must be the same for all.
    problems = [problem for problem in builtin.allgather_object(import_problem()) if problem is not None]
    if not problems:
        return HorovodEngine(worker)
    if worker.rank == 0:
        logger.warning(
            "Horovod cannot be imported (%s). Training continues with the builtin engine.", problems[0]
        )
    return builtin
