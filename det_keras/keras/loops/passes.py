"""The passes of a loop written by hand over its data.

A `Batches` is what the script iterates over. Its `Pass` lasts as long as the loop: it keeps the data open from epoch to
epoch, and knows how far the data is read.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.data import DataSource, open_source, whole_data
from det_keras.keras.data.pydataset import PyDatasetSource
from det_keras.keras.data.tfdata import TfDataSource


@dataclass(frozen=True)
class PassOptions:
    """The arguments of `context.batches`.

    Attributes:
        batch_size: samples per batch of one worker; None for 32, or if the data makes its own batches.
        shuffle: as in `model.fit`.
        steps_per_epoch: batches of one pass; None for all.
        is_training: whether the batches are trained on, and not only evaluated.
    """

    batch_size: int | None
    shuffle: bool | str
    steps_per_epoch: int | None
    is_training: bool


@dataclass(frozen=True)
class SavedPass:
    """The state of a pass in a checkpoint.

    Attributes:
        state: the value that `Pass.get_state` returned.
        directory: the files beside it.
    """

    state: Mapping[str, Any]
    directory: Path

    @property
    def is_current(self) -> bool:
        """Whether it is the pass at which training stopped."""
        return bool(self.state["is_current"])

    @property
    def is_open(self) -> bool:
        """Whether it was begun in the epoch of the checkpoint."""
        return bool(self.state["is_open"])


class Pass:
    """One pass of each epoch over some data: its source, and how far it is read.

    Args:
        key: its name, or its place among the passes of an epoch.
        seed: the seed of its batch plan.
        workers: the workers that share the data.

    Attributes:
        number: number of passes that have ended.
        step: batches of the current pass that were trained; 0 between two passes.
        is_open: whether it was begun in this epoch.
        options: the arguments of the newest call.
    """

    def __init__(self, key: str, seed: int, workers: DistributedContext) -> None:
        self.key = key
        self.number = self.step = 0
        self.is_open = False
        self.options = PassOptions(None, False, None, True)
        self._seed = seed
        self._workers = workers
        self._given: tuple[Any, ...] = ()
        self._source: DataSource | None = None
        # A script may make its dataset anew in each epoch; passes that ended since the source was opened.
        self._is_new = False
        self._ended_here = 0
        self._iterator: Iterator[Any] | None = None
        self._saved: SavedPass | None = None
        # Batches that were taken from the source.
        self._taken = 0

    @property
    def source(self) -> DataSource:
        """The batches."""
        assert self._source is not None
        return self._source

    @property
    def is_loaded(self) -> bool:
        """Whether the script has asked for it in this process."""
        return self._source is not None

    @property
    def steps(self) -> int | None:
        """Batches of one pass; None while it is unknown."""
        return None if self._source is None else self._source.steps_per_epoch

    def open(self, data: tuple[Any, ...], options: PassOptions, made_in_epoch: Callable[[Any], bool]) -> None:
        """Open the data, unless it is open already.

        Args:
            data: the arguments of `context.batches`.
            options: how to read it.
            made_in_epoch: returns whether a tf.data.Dataset was made in this epoch.
        """
        leaves = tuple(keras.tree.flatten(data))
        is_same = len(leaves) == len(self._given) and all(
            leaf is other for leaf, other in zip(leaves, self._given, strict=True)
        )
        if self._source is not None and is_same and options == self.options:
            return
        self.close()
        parts = whole_data(data) if self._workers.size > 1 else data
        self._source = open_source(
            (*parts, None, None)[:3],
            batch_size=options.batch_size,
            shuffle=options.shuffle,
            seed=self._seed,
            steps_per_epoch=options.steps_per_epoch,
            workers=self._workers,
        )
        if isinstance(self._source, TfDataSource):
            # A loop opens one iterator for each pass; Keras opens another one where it knows the end.
            self._source.opens_at_end = False
        self._given, self.options, self._taken = leaves, options, 0
        first = data[0]
        self._is_new = (isinstance(first, tf.data.Dataset) and made_in_epoch(first)) or (
            # A generator can be read once; only one that gives several epochs is the same as before.
            inspect.isgenerator(first) and options.steps_per_epoch is None
        )
        self._ended_here = 0 if self._is_new else self.number

    def read(self) -> Iterator[Any]:
        """Yield the batches of this epoch from the current step on."""
        if self._iterator is None:
            self.source.begin_epoch(self._plan_number, self.step, None)
            self._iterator = iter(self.source.dataset(None))
        iterator = self._iterator
        # As in a plain loop, the data is read to its end, unless the script says what an epoch is.
        limit = self.steps if self.options.steps_per_epoch is not None else None
        while limit is None or self.step < limit:
            batch = next(iterator, None)
            if batch is None:
                return
            self._taken += 1
            yield batch

    @property
    def reads_generator(self) -> bool:
        """Whether its data, which it has opened, is a generator of the script."""
        return self._source is not None and self._source.is_generator

    def note_end(self) -> None:
        """Record how far the data was read, for later trainings."""
        if self._source is not None:
            self._source.note_end(self._taken)

    def end_epoch(self) -> None:
        """Record that the pass of this epoch has ended, at its last batch or before."""
        if self.is_open:
            self.source.end_epoch(self._plan_number)
            self.number += 1
            self._ended_here += 1
        self.begin_anew()

    def begin_anew(self) -> None:
        """Let the data be read from its beginning."""
        self.step, self.is_open, self._iterator = 0, False, None

    def close(self) -> None:
        """Release the data."""
        if self._source is not None:
            self._source.close()
        self._source = self._iterator = None

    # Checkpoints.

    def get_state(self, directory: Path, *, is_current: bool) -> dict[str, Any]:
        """Return the state as JSON values.

        Args:
            directory: for files of the source.
            is_current: it is the pass that was read last, in this epoch.
        """
        saved = self._saved
        if saved is not None:
            # The script has not asked for it since a resume.
            return {**saved.state, "is_current": False, "is_open": False}
        return {
            "number": self.number,
            "step": self.step,
            "is_open": self.is_open,
            "is_current": is_current,
            "describe": self.source.describe(),
            "source": self.source.save_state(directory) if is_current else self.source.state_between_passes(),
        }

    def await_state(self, saved: SavedPass | None) -> None:
        """Keep a state from a checkpoint until `take_state`."""
        self._saved = saved
        self.number = 0 if saved is None else saved.state["number"]

    def take_state(self) -> SavedPass | None:
        """Return the state from a checkpoint that is to be restored, the first time."""
        saved, self._saved = self._saved, None
        return saved

    def skip(self, saved: SavedPass) -> None:
        """Bring the data to the state between two passes in which an earlier process left it."""
        if not self._is_new:
            self.source.skip_passes(self._ended_here, saved.state["source"])

    def mark_read(self, saved: SavedPass) -> None:
        """Record that an earlier process has read the pass of this epoch."""
        self.step, self.is_open = saved.state["step"], True

    def resume(self, saved: SavedPass, *, epochs_left: int) -> frozenset[str]:
        """Restore the position inside a pass; return the random streams that are restored by this.

        Args:
            saved: the state in the checkpoint.
            epochs_left: number of remaining epochs including this one.
        """
        source, number, step = saved.state["source"], self._plan_number, saved.state["step"]
        self.source.restore_passes(source, number)
        drawn = self.source.restore_state(source, saved.directory, number, step, epochs_left=epochs_left)
        self.step, self._iterator = step, None
        self._taken = number * (self.steps or 0) + step
        return drawn

    @property
    def _plan_number(self) -> int:
        """The number of this pass for its source: a plan counts all passes, a pipeline those since it was made."""
        return self._ended_here if isinstance(self._source, TfDataSource) else self.number


class PassReader(Protocol):
    """The loop, from the point of view of the `Batches` of one of its epochs."""

    def open_pass(self, batches: Batches) -> Pass:
        """Return the pass of some batches, with its data open."""

    def begin_pass(self, batches: Batches) -> Pass | None:
        """Return the pass to read; None if an earlier process has read it in this epoch."""

    def begin_batch(self, data_pass: Pass, batch: Any) -> Any:
        """Return what the script gets of a batch."""

    def end_batch(self, data_pass: Pass) -> bool:
        """Act after a batch was trained, and return whether the pass has more batches to give."""

    def end_pass(self, data_pass: Pass) -> None:
        """Record that a pass has no more batches."""

    def leave_pass(self, data_pass: Pass) -> None:
        """Record that nothing more is read of a pass now."""


class Batches:
    """The batches of a pass over data, from `context.batches`; in each epoch it is iterated over at most once.

    Args:
        reader: returns the running loop; it raises ValueError outside of one.
        key: name of the pass.
        data: the data.
        options: how to read it.
    """

    def __init__(
        self, reader: Callable[[], PassReader], key: str, data: tuple[Any, ...], options: PassOptions
    ) -> None:
        self.key = key
        self.data = data
        self.options = options
        self._reader = reader
        self._pass: Pass | None = None

    @property
    def step(self) -> int:
        """Number of the current batch in its pass, from 0; after a resume too, where `enumerate` begins anew."""
        return 0 if self._pass is None else self._pass.step

    def __iter__(self) -> Iterator[Any]:
        reader = self._reader()
        data_pass = self._pass = reader.begin_pass(self)
        if data_pass is None:
            return
        try:
            for batch in data_pass.read():
                yield reader.begin_batch(data_pass, batch)
                if not reader.end_batch(data_pass):
                    return
            reader.end_pass(data_pass)
        finally:
            # Also if the script leaves the pass early.
            reader.leave_pass(data_pass)

    def __len__(self) -> int:
        """Return the number of batches of a whole pass.

        Raises:
            TypeError: it is not known before the data ends.
        """
        steps = self._reader().open_pass(self).steps
        if steps is None:
            raise TypeError("The number of these batches is not known before the data ends.")
        return steps


def seed_of(key: str, plan_seed: int, *, is_first: bool) -> int:
    """Return the seed of the batch plan of a pass; the first one of a loop has the seed that `fit` would have."""
    if is_first:
        return plan_seed
    stream = np.random.RandomState([plan_seed, zlib.crc32(key.encode())])
    return int(stream.randint(0, 2**31 - 1))


def batch_of_script(source: DataSource, batch: Any) -> Any:
    """Return a batch as the data itself gives it: a PyDataset whose items are arrays gives arrays, not tuples."""
    if isinstance(source, PyDatasetSource) and isinstance(batch, tuple) and len(batch) == 1:
        return batch[0]
    return batch


def num_rows_of(batch: Any) -> int:
    """Return the number of rows of a batch of any structure."""
    leaf = keras.tree.flatten(batch)[0]
    shape = leaf.shape
    return int(shape[0]) if len(shape) and shape[0] is not None else 1
