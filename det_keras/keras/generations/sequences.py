"""Data loaders of TFKerasTrial scripts, as Keras datasets."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np


class InMemorySequence(keras.utils.PyDataset):  # type: ignore[misc]
    """Arrays in memory as a dataset of batches; the last batch may be smaller.

    Args:
        data: inputs: an array, or a list or dict of arrays, each (samples, ...).
        labels: targets, in the same form.
        batch_size: samples per batch; ``context.get_per_slot_batch_size()`` or ``get_global_batch_size()``.

    Raises:
        ValueError: `batch_size` is not positive, or the arrays differ in length or are empty.
    """

    def __init__(self, data: Any, labels: Any, batch_size: int) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1. Received: {batch_size!r}.")
        self._arrays = keras.tree.map_structure(np.asarray, (data, labels))
        lengths = sorted({len(array) for array in keras.tree.flatten(self._arrays)})
        if len(lengths) != 1 or lengths[0] == 0:
            raise ValueError(
                f"All arrays need the same number of samples, at least 1. Received arrays of {lengths}."
            )
        self._samples = lengths[0]
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(self._samples / self.batch_size)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"Batch {index} is outside of the {len(self)} batches.")
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return keras.tree.map_structure(lambda array: array[rows], self._arrays)


class SequenceAdapter:
    """A Keras Sequence with options for loading its batches.

    Args:
        sequence: a `keras.utils.Sequence`, in Keras 3 also called PyDataset.
        use_multiprocessing: load in processes instead of threads.
        workers: number of threads or processes; with 0 or 1 batches are loaded on the training thread.
        max_queue_size: maximum number of batches that are loaded ahead.

    Raises:
        TypeError: `sequence` is something else.
    """

    def __init__(
        self, sequence: Any, use_multiprocessing: bool = False, workers: int = 1, max_queue_size: int = 10
    ) -> None:
        if not isinstance(sequence, keras.utils.PyDataset):
            raise TypeError(
                f"`SequenceAdapter` needs a keras.utils.Sequence. Received a {type(sequence).__name__}."
            )
        sequence.workers = max(workers, 1)
        sequence.use_multiprocessing = use_multiprocessing
        sequence.max_queue_size = max_queue_size
        self._sequence = sequence

    @property
    def sequence(self) -> Any:
        """The sequence, with the options set."""
        return self._sequence

    def __len__(self) -> int:
        return len(self._sequence)
