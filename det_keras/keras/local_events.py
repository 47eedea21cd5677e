"""TensorBoard events of a local run.

They are written as records, not with `tf.summary`: libraries that record a training listen there, and would find each
metric a second time.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import tensorflow as tf

# By it TensorBoard knows the tensors of `tf.summary.scalar`.
_SCALAR = tf.compat.v1.SummaryMetadata()
_SCALAR.plugin_data.plugin_name = "scalars"
_SCALAR.data_class = 1


class EventWriter:
    """Writes reported metrics as scalars, one TensorBoard run for each group.

    Args:
        directory: the directory of the events; created when the first metric is written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}

    def write(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Write the numbers among `metrics` at a batch count.

        Args:
            group: the group, which names the TensorBoard run.
            steps_completed: batches trained so far.
            metrics: values by name; values that are not numbers are left out.
        """
        file = self._files.get(group)
        if file is None:
            file = self._files[group] = _create(self._directory / group)
        values = [
            tf.compat.v1.Summary.Value(
                tag=name, metadata=_SCALAR, tensor=tf.make_tensor_proto(float(value), tf.float32)
            )
            for name, value in metrics.items()
            if isinstance(value, Real)
        ]
        _append(file, step=steps_completed, summary=tf.compat.v1.Summary(value=values))


def _create(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}.v2"
    file = tf.io.TFRecordWriter(str(folder / name))
    _append(file, file_version="brain.Event:2")
    return file


def _append(file: Any, **content: Any) -> None:
    file.write(tf.compat.v1.Event(wall_time=time.time(), **content).SerializeToString())
    file.flush()
