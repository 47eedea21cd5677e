"""Batches of a `keras.utils.PyDataset` (Sequence), in a seeded order."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.keras.data.base import DataSource, PlannedDataset
from det_keras.keras.data.loader import load_batches
from det_keras.keras.data.order import batch_order
from det_keras.keras.data.shard import Shard

__all__ = ["PyDatasetSource"]

# Keras looks at two batches to see which dimensions vary.
_BATCHES_FOR_SPEC = 2


class PyDatasetSource(DataSource):
    """Batches of a PyDataset.

    The dataset's ``on_epoch_begin`` and ``on_epoch_end`` are called around each epoch; on a resume
    ``on_epoch_end`` is called once for each finished epoch, or ``load_state`` if the dataset has it.

    Args:
        dataset: the user's.
        shuffle: whether the batches come in a new order in each pass.
        seed: of the plan.
        steps_per_epoch: batches that count as one epoch; by default all. Needed where ``num_batches`` is None.
        transform: applied to each batch inside tf.data, such as class weights.
        shard: this worker's place; with several, elements are (batch, rows) pairs.
        per_worker_batches: the dataset's items are batches of one worker, of which `size` in a row make a
            global batch; otherwise they are global batches, and each worker trains on its rows of each.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool,
        seed: int,
        steps_per_epoch: int | None = None,
        transform: Callable[..., Any] | None = None,
        shard: Shard | None = None,
        per_worker_batches: bool = False,
    ) -> None:
        self._source = dataset
        self._shard = shard or Shard()
        self._items_per_step = self._shard.size if per_worker_batches else 1
        self._transform = transform
        self._shuffle = bool(shuffle)
        self._seed = seed
        num_batches = dataset.num_batches
        # It is kept in checkpoints as JSON, which knows no NumPy.
        self._num_batches = None if num_batches is None else operator.index(num_batches)
        if self._num_batches == 0:
            raise ValueError(f"The {type(dataset).__name__} is empty: it has 0 batches.")
        if self._num_batches is None and steps_per_epoch is None:
            raise ValueError(
                f"The {type(dataset).__name__} has no `num_batches`. Pass `steps_per_epoch` to say what an epoch is."
            )
        # Of an epoch: with batches of single workers, several items make a step.
        self._steps: int | None = self._num_batches and math.ceil(self._num_batches / self._items_per_step)
        self.steps_per_epoch = steps_per_epoch or self._steps
        self._epoch = self._first = 0
        self._stop: int | None = None
        self._entered: int | None = None
        self._iterator: Any = None
        self._pending = False
        self._dataset = self._build()

    @property
    def element_spec(self) -> Any:
        spec = self._dataset.element_spec
        return spec if self._shard.is_whole else spec[0]

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "PyDataset",
            "class": type(self._source).__name__,
            "batches": self._num_batches,
            "steps_per_epoch": self.steps_per_epoch,
            "shuffle": self._shuffle,
        }

    def begin_epoch(self, epoch: int, first_step: int, stop_step: int | None) -> None:
        if self._entered != epoch:
            self._entered = epoch
            _call(self._source, "on_epoch_begin")
        self._epoch, self._first, self._stop = epoch, first_step, stop_step
        self._pending = True

    def end_epoch(self, epoch: int) -> None:
        _call(self._source, "on_epoch_end")

    def dataset(self, cardinality: int | None) -> tf.data.Dataset:
        return PlannedDataset(self._dataset, self._open, cardinality)

    def save_state(self, directory: Path) -> dict[str, Any]:
        if hasattr(self._source, "get_state"):
            return {"dataset": self._source.get_state()}
        return {}

    def restore_state(
        self, state: dict[str, Any], directory: Path, epoch: int, step: int, *, epochs_left: int
    ) -> None:
        if "dataset" in state and hasattr(self._source, "load_state"):
            self._source.load_state(state["dataset"])
            return
        for _ in range(epoch):
            _call(self._source, "on_epoch_end")

    def _open(self) -> Any:
        if self._pending or self._iterator is None:
            self._pending = False
            self._iterator = iter(self._dataset)
        return self._iterator

    def _indices(self) -> Iterator[tuple[int, int]]:
        """Yield this worker's item for each step that `begin_epoch` asked for, and 1, or 0 if it has none there."""
        assert self.steps_per_epoch is not None
        base = self._epoch * self.steps_per_epoch
        stop = self.steps_per_epoch if self._stop is None else self._stop
        rank = self._shard.rank if self._items_per_step > 1 else 0
        order: tuple[int, list[int]] | None = None
        for step in range(base + self._first, base + stop):
            if self._steps is None:
                yield step * self._items_per_step + rank, 1
                continue
            number, place = divmod(step, self._steps)
            if order is None or order[0] != number:
                order = number, self._order(number)
            place = place * self._items_per_step + rank
            yield (order[1][place], 1) if place < len(order[1]) else (order[1][0], 0)

    def _order(self, number: int) -> list[int]:
        assert self._num_batches is not None
        if self._shuffle:
            return batch_order(self._num_batches, self._seed, number)
        return list(range(self._num_batches))

    def _build(self) -> tf.data.Dataset:
        count = min(_BATCHES_FOR_SPEC, self._num_batches or _BATCHES_FOR_SPEC)
        signature = _signature([standardize_batch(self._source[index]) for index in range(count)])
        signature = signature, tf.TensorSpec([], tf.int64)
        dataset = tf.data.Dataset.from_generator(self._generate, output_signature=signature)
        dataset = dataset.map(self._prepare)
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options).prefetch(2)

    def _prepare(self, batch: Any, is_there: tf.Tensor) -> Any:
        if self._transform is not None:
            batch = self._transform(*batch)
        if self._shard.is_whole:
            return batch
        if self._items_per_step == 1:
            return self._shard.of_batch(*batch)
        return batch, is_there * tf.shape(keras.tree.flatten(batch)[0], tf.int64)[0]

    def _generate(self) -> Iterator[Any]:
        places = list(self._indices())
        items = load_batches(self._source, [index for index, _ in places])
        for batch, (_, is_there) in zip(items, places, strict=True):
            yield standardize_batch(batch), is_there


def standardize_batch(batch: Any) -> Any:
    """Return a batch as a tuple (x,), (x, y) or (x, y, sample_weight), as Keras reads it.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(batch, dict | np.ndarray) or tf.is_tensor(batch):
        return (batch,)
    if isinstance(batch, list):
        batch = tuple(batch)
    if not isinstance(batch, tuple) or len(batch) not in (1, 2, 3):
        raise ValueError(
            "PyDataset.__getitem__() must return an array, a dict, or a tuple (x,), (x, y) or (x, y, sample_weight). "
            f"Received a {type(batch).__name__}."
        )
    while batch[-1] is None and len(batch) > 1:
        batch = batch[:-1]
    return _tuples(batch)


def _tuples(structure: Any) -> Any:
    if isinstance(structure, list | tuple):
        return tuple(_tuples(item) for item in structure)
    if isinstance(structure, dict):
        return {name: _tuples(item) for name, item in structure.items()}
    return structure


def _signature(batches: list[Any]) -> Any:
    def spec(*arrays: Any) -> tf.TensorSpec:
        tensors = [tf.convert_to_tensor(array) for array in arrays]
        ranks = {tensor.shape.rank for tensor in tensors}
        if len(ranks) > 1:
            raise ValueError(f"The batches of a PyDataset differ in rank: {sorted(ranks)}.")
        sizes = zip(*(tensor.shape.as_list() for tensor in tensors), strict=True)
        shape = [size[0] if len(set(size)) == 1 else None for size in sizes]
        # The last batch is often smaller, even where the first two are alike.
        return tf.TensorSpec([None, *shape[1:]] if shape else [], tensors[0].dtype)

    return keras.tree.map_structure(spec, *batches)


def _call(dataset: Any, name: str) -> None:
    method = getattr(dataset, name, None)
    if method is not None:
        method()
