"""Batches of arrays: tf.data computes the order of indices and gathers the rows.

No batch is read again on a resume: a resumed epoch skips indices, which takes no time.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.keras.data.base import IteratedSource
from det_keras.keras.data.order import EpochLengths, epoch_lengths, sample_order
from det_keras.keras.data.shard import Shard
from det_keras.keras.private_api.data import (
    arrays_in,
    convert_array,
    map_arrays,
    num_rows,
    split_rows,
    take_rows,
)

_PREFETCHED_BATCHES = 4
_FINGERPRINT_ROWS = 1000
_ENDLESS = 1 << 62


class ArraySource(IteratedSource):
    """Batches of arrays that fit in memory.

    Args:
        data: x, (x, y) or (x, y, sample_weight), as `keras.utils.pack_x_y_sample_weight` packs them; each an
            array, or a list, tuple or dict of arrays, all with the same number of samples in their first dimension.
        batch_size: samples per global batch; the last batch of a pass may be smaller.
        shuffle: True for a new order in each pass, "batch" to shuffle only inside each batch, False for none.
        seed: the seed of the batch plan.
        steps_per_epoch: batches that count as one epoch; by default one pass over the data.
        wraps_around: an epoch that reaches the end of the data continues at its beginning; by default it ends there.
        shard: this worker's share; with several workers, elements are (batch, rows) pairs.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int,
        shuffle: bool | str,
        seed: int,
        steps_per_epoch: int | None = None,
        wraps_around: bool = False,
        shard: Shard | None = None,
    ) -> None:
        self._shard = shard or Shard()
        self._tensors = to_tensors(data)
        self._size = num_samples(self._tensors)
        self.batch_size: int = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._steps_per_pass = math.ceil(self._size / batch_size)
        self.epochs: EpochLengths = epoch_lengths(
            steps_per_epoch, self._steps_per_pass, wraps_around=wraps_around
        )
        self.steps_per_epoch: int = self.epochs.steps_per_epoch
        # Counted over all epochs: the next step of the iterator, and the step after its last one.
        self._begin, self._stop = 0, 0
        # A variable instead of a constant: the dataset is traced once and then iterated from different steps.
        self._first = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._steps = self._slices() if self._is_in_order else self._gathered_steps()
        self._dataset = _prefetched(self._steps)

    @property
    def may_lack_rows(self) -> bool:
        return 0 < self._size % self.batch_size < self._shard.parts

    @property
    def element_spec(self) -> Any:
        spec = self._dataset.element_spec
        return spec if self._shard.is_whole else spec[0]

    def describe(self) -> dict[str, Any]:
        shapes = _described(self._tensors)
        return {
            "kind": "arrays",
            "samples": self._size,
            "batch_size": self.batch_size,
            "steps_per_epoch": self.steps_per_epoch,
            "shuffle": self._shuffle,
            "shapes": shapes,
        }

    def fingerprint(self) -> str | None:
        rows = np.unique(np.linspace(0, self._size - 1, _FINGERPRINT_ROWS).astype(np.int64))
        content = hashlib.sha256()
        for array in arrays_in(self._tensors):
            part = take_rows(array, tf.constant(rows))
            dense = tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part
            values = dense.numpy()
            content.update(repr(values.tolist()).encode() if values.dtype == object else values.tobytes())
        return content.hexdigest()

    def begin_epoch(self, epoch: int, first_step: int, stop_step: int | None) -> None:
        base = self.epochs.start_of(epoch)
        first = base + first_step
        # Opening an iterator takes milliseconds, so that an iterator serves for the next epoch as well.
        self._pending = not (self.is_read_exactly and self._iterator is not None and first == self._stop)
        self._begin = first
        self._stop = base + (self.epochs.steps_in(epoch) if stop_step is None else stop_step)

    def leave_epoch(self) -> None:
        self._iterator = None

    def close(self) -> None:
        super().close()
        del self._steps, self._tensors

    def records_before(self, epoch: int, step: int) -> int | None:
        passes, rest = divmod(self.epochs.start_of(epoch) + step, self._steps_per_pass)
        return passes * self._size + rest * self.batch_size

    @property
    def _is_in_order(self) -> bool:
        """Whether batches are slices of dense arrays, which need neither row numbers nor a traced function."""
        tensors = tf.nest.flatten(self._tensors)
        is_dense = all(isinstance(tensor, tf.Tensor) for tensor in tensors)
        return not self._shuffle and self._shard.is_whole and is_dense

    def _open_pass(self) -> Any:
        if self._is_in_order:
            steps = self._steps.skip(self._begin % self._steps_per_pass)
        else:
            steps = self._steps
            self._first.assign(self._begin)
        return iter(_prefetched(steps if self.is_read_exactly else steps.take(self._stop - self._begin)))

    def _slices(self) -> tf.data.Dataset:
        """Return the dataset of all steps from the beginning of a pass."""
        whole = tf.data.Dataset.from_tensors(self._tensors)
        return whole.rebatch(self.batch_size, drop_remainder=self._size % self.batch_size == 0).repeat()

    def _gathered_steps(self) -> tf.data.Dataset:
        """Return the dataset of all steps from `_first` on, counted over all epochs."""
        per_pass = tf.constant(self._steps_per_pass, tf.int64)

        # The order of a pass is the state of one sequential scan: datasets inside of a dataset would be opened, and
        # their functions be instantiated, for each pass. Autograph would take most of the time of tracing.
        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def gather(state: Any, item: Any) -> Any:
            (number, order), (ahead, data) = state, item
            step = self._first + ahead
            current = step // per_pass
            order = tf.cond(tf.equal(current, number), lambda: order, lambda: self._order(current))
            return (current, order), self._gather(self._slice(order, current, step % per_pass), data)

        # Pass the tensors as a dataset: each function would make a copy of a tensor that it captures.
        tensors = tf.data.Dataset.from_tensors(self._tensors).repeat()
        numbered = tf.data.Dataset.zip((tf.data.Dataset.range(_ENDLESS), tensors))
        nothing = (tf.constant(-1, tf.int64), tf.zeros([self._size], tf.int64))
        # Gather sequentially, ahead of training: parallel gathers slow each other down.
        return numbered.scan(nothing, gather)

    def _order(self, number: tf.Tensor) -> tf.Tensor:
        if self._shuffle is True:
            return sample_order(self._size, self._seed, number)
        return tf.range(self._size, dtype=tf.int64)

    def _gather(self, rows: tf.Tensor, data: Any) -> Any:
        if self._shard.is_whole:
            return map_arrays(lambda array: take_rows(array, rows), data)
        part, count = self._shard.of_rows(rows)
        if self._size % self.batch_size == 0 and self.batch_size % self._shard.size == 0:
            part = tf.ensure_shape(part, [self.batch_size // self._shard.size])
        return map_arrays(lambda array: take_rows(array, part), data), count

    def _slice(self, order: tf.Tensor, number: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        rows = order[step * self.batch_size : (step + 1) * self.batch_size]
        if self._shuffle == "batch":
            seed = tf.stack([tf.constant(self._seed, tf.int64), number * self._steps_per_pass + step])
            rows = tf.random.experimental.stateless_shuffle(rows, seed=seed)
        if self._size % self.batch_size == 0:
            rows = tf.ensure_shape(rows, [self.batch_size])
        return rows


def to_tensors(data: Any) -> Any:
    """Return arrays as tensors, converted as Keras's own adapter does, and lists as tuples.

    Raises:
        TypeError: a part is not an array.
        ValueError: the arrays are empty or differ in their number of samples.
    """
    tensors = keras.tree.lists_to_tuples(map_arrays(_to_tensor, data))
    sizes = sorted({num_rows(array) for array in arrays_in(tensors)})
    if len(sizes) > 1:
        raise ValueError(f"All arrays need the same number of samples. Received arrays of {sizes} samples.")
    if sizes == [0]:
        raise ValueError("The data is empty: the arrays hold 0 samples.")
    return tensors


def num_samples(data: Any) -> int:
    """Return the number of samples of a structure that `to_tensors` returned."""
    return num_rows(arrays_in(data)[0])


def rows_of(array: Any) -> int:
    """Return the number of samples of one array, tensor or DataFrame.

    Raises:
        TypeError: `array` is none of these, or a scalar.
    """
    if not (hasattr(array, "__array__") or hasattr(array, "shape")):
        raise TypeError(
            "Training data must be arrays, tensors, DataFrames, a PyDataset or a tf.data.Dataset, or lists and dicts "
            f"of arrays; a list of numbers becomes one with `np.asarray(...)`. Received: {_shown(array)}."
        )
    shape = array.shape if hasattr(array, "shape") else np.shape(array)
    if len(shape) == 0:
        raise TypeError(f"A scalar is not an array of samples. Received: {_shown(array)}.")
    return int(shape[0])


def split_arrays(data: tuple[Any, ...], validation_split: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split off the last rows of arrays for validation, the same rows in every process.

    Args:
        data: (x, y, sample_weight), with None for absent parts.
        validation_split: fraction of the samples that becomes validation data, between 0 and 1.

    Returns:
        Training data and validation data.

    Raises:
        ValueError: the training or the validation data would be empty.
    """
    size = rows_of(keras.tree.flatten(data)[0])
    if not 0 < math.floor(size * (1.0 - validation_split)) < size:
        raise ValueError(
            f"`validation_split={validation_split!r}` of {size} samples leaves one side without any. "
            "Give more data or another split."
        )
    train, validation = split_rows(data, validation_split)
    return tuple(train), tuple(validation)


def _to_tensor(array: Any) -> Any:
    rows_of(array)
    converted = convert_array(array)
    if isinstance(converted, np.ndarray):
        if converted.dtype == object:
            is_text = all(isinstance(item, str) for item in converted.flat)
            converted = converted.astype(str if is_text else keras.config.floatx())
        return tf.convert_to_tensor(converted)
    return converted


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:60] + '...'} (a {type(value).__name__})"


def _described(structure: Any) -> Any:
    """Return the shapes and dtypes of a structure of arrays as JSON; for a sparse array, its dense shape."""
    if isinstance(structure, dict):
        return {str(name): _described(item) for name, item in structure.items()}
    if structure is None:
        return None
    arrays = arrays_in(structure)
    if len(arrays) == 1 and arrays[0] is structure:
        tensor = getattr(structure, "sparse", structure)
        return [*tensor.shape[1:], tensor.dtype.name]
    return [_described(item) for item in structure]


def _prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    # With autotuning `fit` waits up to 1.8 s at its end for the tuning thread, and this pipeline has nothing to tune.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.deterministic = True
    return dataset.with_options(options).prefetch(_PREFETCHED_BATCHES)
