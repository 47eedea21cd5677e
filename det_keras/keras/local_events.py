"""TensorBoard events of a local run."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import tensorflow as tf

# `tf.summary.scalar` needs TensorBoard installed to say no more than this.
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
        self._writers: dict[str, Any] = {}

    def write(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Write the numbers among `metrics` at a batch count.

        Args:
            group: the group, which names the TensorBoard run.
            steps_completed: batches trained so far.
            metrics: values by name; values that are not numbers are left out.
        """
        writer = self._writers.get(group)
        if writer is None:
            writer = tf.summary.create_file_writer(str(self._directory / group))
            self._writers[group] = writer
        with writer.as_default(step=steps_completed):
            for name, value in metrics.items():
                if isinstance(value, Real):
                    tf.summary.write(name, tf.constant(float(value)), metadata=_SCALAR)
        writer.flush()
