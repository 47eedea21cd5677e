"""Batches of a `keras.utils.PyDataset` (Sequence), in a seeded order.

Items that depend only on their index and the epoch need no state. For others a checkpoint stores the state of the
dataset and of the random streams at the beginning of the pass. If either has changed since, a resumed run loads the
items of the pass again.
"""

from __future__ import annotations

import base64
import math
import operator
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.keras.checkpoint.random_state import capture_streams, restore_streams
from det_keras.keras.checkpoint.reached import ReachedState
from det_keras.keras.data.base import IteratedSource
from det_keras.keras.data.loader import load_batches
from det_keras.keras.data.order import EpochLengths, batch_order, epoch_lengths
from det_keras.keras.data.shard import Shard
from det_keras.keras.data.tfdata import replay
from det_keras.keras.private_api.data import BATCHES_FOR_SPEC, tensor_spec


class PyDatasetSource(IteratedSource):
    """Batches of a PyDataset.

    ``on_epoch_begin`` and ``on_epoch_end`` of the dataset are called around each epoch. As in Keras, ``on_epoch_end``
    is also called once before the first epoch. On a resume ``on_epoch_end`` is called as many times as in the
    interrupted run and plain attributes are restored, or ``load_state`` is called if the dataset has it.

    Args:
        dataset: the user's dataset.
        shuffle: read the batches in a new order in each pass.
        seed: the seed of the batch plan.
        steps_per_epoch: batches that count as one epoch; by default all. Required if ``num_batches`` is None.
        wraps_around: an epoch that reaches the end of the data continues at its beginning; by default it ends there.
        transform: function that is applied to each batch inside tf.data, such as class weights.
        shard: this worker's share; with several workers, elements are (batch, rows) pairs.
        per_worker_batches: the dataset's items are batches of one worker, and `size` consecutive items form a
            global batch; otherwise they are global batches, and each worker trains on its rows of each.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool,
        seed: int,
        steps_per_epoch: int | None = None,
        wraps_around: bool = False,
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
        # Checkpoints store it as JSON, which does not support NumPy integers.
        self._num_batches = None if num_batches is None else operator.index(num_batches)
        if self._num_batches == 0:
            raise ValueError(f"The {type(dataset).__name__} is empty: it has 0 batches.")
        if self._num_batches is None and steps_per_epoch is None:
            raise ValueError(
                f"The {type(dataset).__name__} has no `num_batches`. Pass `steps_per_epoch` to say what an epoch is."
            )
        # Steps of a pass: with batches of single workers, several items form a step.
        self._steps: int | None = self._num_batches and math.ceil(self._num_batches / self._items_per_step)
        self.epochs: EpochLengths = epoch_lengths(steps_per_epoch, self._steps, wraps_around=wraps_around)
        self.steps_per_epoch: int = self.epochs.steps_per_epoch
        self._epoch = self._first = 0
        self._stop: int | None = None
        self._entered: int | None = None
        self._attributes = ReachedState({"dataset": dataset})
        # The state of the dataset and the random streams at the beginning of the pass; None between two passes.
        self._start: dict[str, Any] | None = None
        self._started_at = time.monotonic()
        self._ended = 0
        # The next step of this epoch to load.
        self._next = 0
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
        self._enter(epoch)
        self._epoch, self._first, self._stop = epoch, first_step, stop_step
        self._pending = True

    def reset(self) -> None:
        # Keras also calls `on_epoch_end` before the first epoch.
        self._end()

    def end_epoch(self, epoch: int) -> None:
        self._end()
        self._start = self._entered = None

    def is_ahead(self, step: int, at_once: int = 1) -> bool | None:
        stop = self.epochs.steps_in(self._epoch) if self._stop is None else self._stop
        # How many batches an execution of several has taken so far is not known.
        return None if at_once > 1 or step + 1 >= stop else self._next >= step + 2

    def save_state(self, directory: Path) -> dict[str, Any]:
        if self._start is None:
            return self.state_between_passes()
        now = self._state()
        # Items are loaded ahead of training, so only the state at the beginning of the pass is well defined.
        state = {"dataset": self._start["dataset"], "ended": self._ended}
        if now != self._start:
            state |= {"streams": self._start["streams"], "seconds": time.monotonic() - self._started_at}
        return state

    def restore_state(
        self, state: dict[str, Any], directory: Path, epoch: int, step: int, *, epochs_left: int
    ) -> frozenset[str]:
        self._end_again(state)
        if step == 0:
            self._load(state)
            return frozenset()
        self._enter(epoch, state)
        if "streams" not in state:
            return frozenset()
        restore_streams(state["streams"])
        assert self._start is not None
        self._start = {**self._start, "streams": state["streams"]}
        self._epoch, self._first, self._stop = epoch, 0, step
        items = load_batches(self._source, [index for index, _ in self._indices()])
        why = f"the items of this {type(self._source).__name__} depend on the ones before"
        return replay(lambda: next(items), step, why, state.get("seconds"))

    def state_between_passes(self) -> dict[str, Any]:
        return {"dataset": self._state()["dataset"], "ended": self._ended}

    def skip_passes(
        self, passes: int, state: Mapping[str, Any], *, batches: int | None = None, steps: int | None = None
    ) -> None:
        self._end_again(state)
        self._load(state)

    def _end(self) -> None:
        self._ended += 1
        _call(self._source, "on_epoch_end")

    def _end_again(self, state: Mapping[str, Any]) -> None:
        """Call ``on_epoch_end`` as many times as the interrupted run did, unless the dataset has its own state."""
        ended = state.get("ended", 0)
        if _has_own_state(self._source):
            self._ended = ended
            return
        for _ in range(ended):
            self._end()

    def _enter(self, epoch: int, state: Mapping[str, Any] | None = None) -> None:
        """Begin a pass unless it has begun; with `state`, in the state in which it began before an interruption."""
        if self._entered == epoch:
            return
        self._entered = epoch
        _call(self._source, "on_epoch_begin")
        if state is not None:
            self._load(state)
        self._start, self._started_at = self._state(), time.monotonic()

    def _state(self) -> dict[str, Any]:
        own = _has_own_state(self._source)
        content = pickle.dumps(self._source.get_state()) if own else self._attributes.dump()
        return {"dataset": base64.b64encode(content).decode(), "streams": capture_streams()}

    def _load(self, state: Mapping[str, Any]) -> None:
        if "dataset" not in state:
            return
        content = base64.b64decode(state["dataset"])
        if _has_own_state(self._source):
            self._source.load_state(pickle.loads(content))
        else:
            self._attributes.load(content)

    def _indices(self) -> Iterator[tuple[int, int]]:
        """Yield this worker's item and 1 for each step that `begin_epoch` set; 0 in place of 1 if it has no item."""
        base = self.epochs.start_of(self._epoch)
        stop = self.epochs.steps_in(self._epoch) if self._stop is None else self._stop
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
        count = min(BATCHES_FOR_SPEC, self._num_batches or BATCHES_FOR_SPEC)
        signature = tensor_spec([standardize_batch(self._source[index]) for index in range(count)])
        signature = signature, tf.TensorSpec([], tf.int64)
        dataset = tf.data.Dataset.from_generator(self._generate, output_signature=signature)
        dataset = dataset.map(self._prepare)
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options).prefetch(2)

    def _prepare(self, batch: Any, is_there: tf.Tensor) -> Any:
        if self._transform is not None:
            batch = self._transform(*(batch if isinstance(batch, tuple) else (batch,)))
        if self._shard.is_whole:
            return batch
        if self._items_per_step == 1:
            return self._shard.of_batch(batch)
        return batch, is_there * tf.shape(keras.tree.flatten(batch)[0], tf.int64)[0]

    def _generate(self) -> Iterator[Any]:
        self._next = self._first
        places = list(self._indices())
        items = load_batches(self._source, [index for index, _ in places])
        for batch, (_, is_there) in zip(items, places, strict=True):
            self._next += 1
            yield standardize_batch(batch), is_there


def standardize_batch(batch: Any) -> Any:
    """Return a batch as Keras passes it to the step: a dict unchanged, else (x,), (x, y) or (x, y, sample_weight).

    Raises:
        ValueError: the batch has another form.
    """
    if isinstance(batch, dict):
        return batch
    if isinstance(batch, np.ndarray) or tf.is_tensor(batch):
        return (batch,)
    if not isinstance(batch, list | tuple) or len(batch) not in (1, 2, 3):
        raise ValueError(
            "PyDataset.__getitem__() must return an array, a dict, or a tuple (x,), (x, y) or (x, y, sample_weight). "
            f"Received a {type(batch).__name__}."
        )
    while batch[-1] is None and len(batch) > 1:
        batch = batch[:-1]
    return keras.tree.lists_to_tuples(tuple(batch))


def _has_own_state(dataset: Any) -> bool:
    return hasattr(dataset, "get_state") and hasattr(dataset, "load_state")


def _call(dataset: Any, name: str) -> None:
    method = getattr(dataset, name, None)
    if method is not None:
        method()
