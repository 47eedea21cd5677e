"""The contract of a data source: the batches of a training, by epoch and step.

A source turns what the user gave to `fit` into a batch plan: which samples form step s of epoch e is a
pure function of (seed, e, s), so that a training can be taken up anywhere. One file per kind of input.

Keras asks a dataset for an iterator whenever it thinks that an epoch begins, also once too often at an
epoch's end. `PlannedDataset` passes that question on to the source, which knows where training stands.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_keras.keras.data.order import EpochLengths

__all__ = ["DataSource", "PlannedDataset"]


class PlannedDataset(tf.data.Dataset):  # type: ignore[misc]
    """A dataset whose iterators are opened by somebody else.

    Args:
        spec_from: a dataset with the same elements.
        open_iterator: returns the iterator to use now.
        cardinality: number of batches that one iterator gives, None if unknown.
    """

    def __init__(
        self, spec_from: tf.data.Dataset, open_iterator: Callable[[], Any], cardinality: int | None
    ) -> None:
        self._spec_from = spec_from
        self._open_iterator = open_iterator
        self._cardinality = tf.data.UNKNOWN_CARDINALITY if cardinality is None else cardinality
        super().__init__(spec_from._variant_tensor)

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
        steps_per_epoch: batches of one epoch; None while only the end of the data can tell.
        epochs: their lengths, None where `steps_per_epoch` is.
        batch_size: samples of a full batch; None where the data decides.
    """

    steps_per_epoch: int | None = None
    batch_size: int | None = None
    epochs: EpochLengths | None = None

    @property
    def may_lack_rows(self) -> bool:
        """Whether a worker may have no row of some batch, where several share it."""
        return True

    @property
    @abc.abstractmethod
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one batch."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what makes this data the same data in a later process: kind, shapes, sizes, as JSON."""

    def fingerprint(self) -> str | None:
        """Return what tells other data of the same shape from this; None where looking would cost a pass over it."""
        return None

    def reset(self) -> None:
        """Prepare for a training or a validation from the beginning, as Keras prepares its data once before each."""
        return

    @abc.abstractmethod
    def begin_epoch(self, epoch: int, first_step: int, stop_step: int | None) -> None:
        """Make the next iterator give the steps `first_step` to `stop_step` - 1 of `epoch`.

        Args:
            epoch: counted from 0.
            first_step: 0, or where a part of the epoch was trained before.
            stop_step: None for all that are left.
        """

    @abc.abstractmethod
    def dataset(self, cardinality: int | None) -> tf.data.Dataset:
        """Return what `model.fit` is given; each of its epochs has `cardinality` batches, if known."""

    def end_epoch(self, epoch: int) -> None:
        """Note that an epoch is over."""
        return

    def records_before(self, epoch: int, step: int) -> int | None:
        """Return how many samples come before a step, None if the source cannot know."""
        return None

    def save_state(self, directory: Path) -> dict[str, Any]:
        """Store what only this process knows of the position, and return JSON for `restore_state`.

        Args:
            directory: for files; made by the source if it needs one.
        """
        return {}

    def restore_passes(self, state: Mapping[str, Any], epoch: int) -> None:
        """Bring the data to where it was when `epoch` began; `restore_state` follows, after that of validations.

        Apart, because validations may read from the same shuffle: what they drew comes before the interrupted pass.
        """
        return

    def restore_state(
        self, state: dict[str, Any], directory: Path, epoch: int, step: int, *, epochs_left: int
    ) -> frozenset[str]:
        """Put the source where `save_state` found it.

        Args:
            state: what `save_state` returned.
            directory: where it left its files.
            epoch: the epoch in which training continues.
            step: the step of it that comes next.
            epochs_left: how many epochs are to come, that one included, as far as is known.

        Returns:
            The names of the random streams from which the data draws, now where it needs them; see `replay`.
        """
        return frozenset()

    def state_between_passes(self) -> dict[str, Any]:
        """Return as JSON what `pass_over` needs to bring other processes here; call it between two passes."""
        return {}

    def pass_over(self, passes: int, state: Mapping[str, Any], *, batches: int | None = None) -> None:
        """Put the data where it is after whole passes that an earlier `fit` or validations made.

        Args:
            passes: how many.
            state: what `state_between_passes` returned after them; empty where that is not known.
            batches: how many batches were read in all; for data that is read on from epoch to epoch.
        """
        return
