"""The contract of a data source: the batches of a training, by epoch and step.

A source turns the data that the user passed to `fit` into a batch plan: the samples of step s of epoch e are a
pure function of (seed, e, s), so that a training can resume at any batch. There is one file per kind of input.

Keras requests an iterator from a dataset at the beginning of each epoch, and an additional one at an epoch's
end. `PlannedDataset` forwards the request to the source, which knows the current position of training.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_keras.keras.data.order import EpochLengths
from det_keras.keras.private_api.data import has_buffered_batch, variant_of


class PlannedDataset(tf.data.Dataset):  # type: ignore[misc]
    """A dataset whose iterators are opened by a given function.

    Args:
        spec_from: a dataset with the same element type.
        open_iterator: returns the iterator to use now.
        cardinality: number of batches of one iterator, None if unknown.
    """

    def __init__(
        self, spec_from: tf.data.Dataset, open_iterator: Callable[[], Any], cardinality: int | None
    ) -> None:
        self._spec_from = spec_from
        self._open_iterator = open_iterator
        self._cardinality = tf.data.UNKNOWN_CARDINALITY if cardinality is None else cardinality
        super().__init__(variant_of(spec_from))

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._spec_from]

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one batch."""
        return self._spec_from.element_spec

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = self._open_iterator()
        return iterator

    def cardinality(self) -> tf.Tensor:
        """Return the number of batches of one iterator."""
        return tf.constant(self._cardinality, tf.int64)


class DataSource(abc.ABC):
    """The batches of one `fit` or one validation, in a planned order.

    Attributes:
        steps_per_epoch: batches of one epoch; None while it is unknown because the data has not ended yet.
        epochs: the lengths of epochs; None if `steps_per_epoch` is None.
        batch_size: samples of a full batch; None if the data defines the batches.
        first_epoch: the epoch in which the training began, from 0.
        is_read_exactly: whether the reader takes as many batches of each epoch as it has, and no more, so that an
            iterator need not end with the epoch.
    """

    steps_per_epoch: int | None = None
    batch_size: int | None = None
    epochs: EpochLengths | None = None
    first_epoch = 0
    is_read_exactly = False

    @property
    def may_lack_rows(self) -> bool:
        """Whether a worker may have no row of some batch, if several workers share the batch."""
        return True

    @property
    @abc.abstractmethod
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one batch."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the values that identify this data in a later process, as JSON: kind, shapes, sizes."""

    def fingerprint(self) -> str | None:
        """Return a digest of the data's content; None if computing it would need a pass over the data."""
        return None

    def reset(self) -> None:
        """Prepare for a training or a validation from the beginning, as Keras does once before each."""
        return

    @abc.abstractmethod
    def begin_epoch(self, epoch: int, first_step: int, stop_step: int | None) -> None:
        """Make the next iterator give the steps `first_step` to `stop_step` - 1 of `epoch`.

        Args:
            epoch: counted from 0.
            first_step: 0, or the number of steps of the epoch that are already trained.
            stop_step: None for all remaining steps.
        """

    @abc.abstractmethod
    def dataset(self, cardinality: int | None) -> tf.data.Dataset:
        """Return the dataset to pass to `model.fit`; each of its epochs has `cardinality` batches, if known."""

    def end_epoch(self, epoch: int) -> None:
        """Record that an epoch ended."""
        return

    def settle(self, batches: int | None) -> None:
        """Wait until the data has been read as far as plain Keras reads it; called where the script can look at it.

        Args:
            batches: number of batches that were taken from its iterator; None if it was read to its end.
        """
        return

    @property
    def is_generator(self) -> bool:
        """Whether it is a generator of the script, which gives each item once."""
        return False

    def note_end(self, batches: int) -> None:
        """Record at the end of a loop how far the user's data was read, where a later training may read on.

        Args:
            batches: number of batches that were taken.
        """
        return

    def leave_epoch(self) -> None:
        """Record that an epoch may have been left before its end."""
        return

    def close(self) -> None:
        """Release the data, its iterators and their threads; nothing else may be called afterwards.

        The parts of a `fit` refer to each other in cycles, so without this they would stay until a garbage collection.
        That may be long after, and then wait: TensorFlow's destructor of an old iterator can wait for its tuning thread
        as long as the iterator has lived, up to a minute.
        """
        return

    def records_before(self, epoch: int, step: int) -> int | None:
        """Return the number of samples before a step, None if the source does not know it."""
        return None

    def is_ahead(self, step: int, at_once: int = 1) -> bool | None:
        """Return whether a batch is ready beside those that are trained now; None if the source does not know it.

        It is called from another thread while training takes batches.

        Args:
            step: number of steps of the current epoch that are trained.
            at_once: number of batches that are trained now, one after another.
        """
        return None

    def save_state(self, directory: Path) -> dict[str, Any]:
        """Store the state of the data in this process, and return JSON for `restore_state`.

        Args:
            directory: a directory for files; the source creates it if it needs one.
        """
        return {}

    def restore_passes(self, state: Mapping[str, Any], epoch: int) -> None:
        """Restore the state that the data had when `epoch` began.

        The state of the validation data is restored next, then `restore_state` is called. The two steps are separate
        because validations may draw seeds from the same shuffle, before the interrupted pass.

        Args:
            state: the value that `save_state` returned.
            epoch: the epoch in which training resumes, from 0.
        """
        return

    def restore_state(
        self, state: dict[str, Any], directory: Path, epoch: int, step: int, *, epochs_left: int
    ) -> frozenset[str]:
        """Restore the state that the source had when `save_state` was called.

        Args:
            state: the value that `save_state` returned.
            directory: the directory with its files.
            epoch: the epoch in which training resumes, from 0.
            step: the next step of this epoch, from 0.
            epochs_left: number of remaining epochs including this one, by the current target.

        Returns:
            The names of the random streams that this call has advanced to the state that the data needs; see `replay`.
        """
        return frozenset()

    def state_between_passes(self) -> dict[str, Any]:
        """Return the state for `skip_passes` in another process, as JSON; call it between two passes."""
        return {}

    def skip_passes(
        self, passes: int, state: Mapping[str, Any], *, batches: int | None = None, steps: int | None = None
    ) -> None:
        """Bring the data to its state after whole passes of an earlier `fit` or of validations.

        Args:
            passes: number of passes.
            state: the value that `state_between_passes` returned after them; empty if it is not known.
            batches: total number of batches that were read; for data that is read continuously across epochs.
            steps: batches of each pass, if the passes end before the data does.
        """
        return


class IteratedSource(DataSource):
    """A source that iterates over one `tf.data.Dataset`, `_dataset`.

    An iterator serves until `begin_epoch` sets `_pending`. The next request of Keras then opens a new one.
    """

    _dataset: tf.data.Dataset
    _iterator: Any = None
    _pending = False

    def dataset(self, cardinality: int | None) -> tf.data.Dataset:
        return PlannedDataset(self._dataset, self._open, cardinality)

    def close(self) -> None:
        self._iterator = None
        # Its functions refer to the source.
        del self._dataset

    def is_ahead(self, step: int, at_once: int = 1) -> bool | None:
        if self.steps_per_epoch is not None and step + at_once >= self.steps_per_epoch:
            # At its end an iterator has nothing more to hold.
            return None
        iterator = self._iterator
        return None if iterator is None else has_buffered_batch(iterator)

    def _open(self) -> Any:
        if self._pending or self._iterator is None:
            self._pending = False
            self._iterator = self._open_pass()
        return self._iterator

    def _open_pass(self) -> Any:
        return iter(self._dataset)
