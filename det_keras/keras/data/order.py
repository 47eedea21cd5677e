"""The order of samples and batches, as pure functions of (seed, epoch)."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpochLengths:
    """The number of batches of each epoch, and its first batch counted over all epochs.

    Keras ends an epoch at the end of the data, so that epochs differ in length if ``steps_per_epoch`` does not divide
    the number of batches of a pass: 11 batches with ``steps_per_epoch=4`` make epochs of 4, 4 and 3 batches.

    Attributes:
        steps_per_epoch: as passed to `fit`.
        steps_per_pass: batches of a pass over the data; None if epochs do not end at the end of the data.
    """

    steps_per_epoch: int
    steps_per_pass: int | None = None

    @property
    def are_equal(self) -> bool:
        """Whether all epochs have the same number of batches."""
        return self.steps_per_pass is None or self.steps_per_pass % self.steps_per_epoch == 0

    def steps_in(self, epoch: int) -> int:
        """Return the number of batches of an epoch, counted from 0."""
        return self.start_of(epoch + 1) - self.start_of(epoch)

    def start_of(self, epoch: int) -> int:
        """Return the number of batches before an epoch, counted from 0."""
        if self.steps_per_pass is None:
            return epoch * self.steps_per_epoch
        passes, rest = divmod(epoch, math.ceil(self.steps_per_pass / self.steps_per_epoch))
        return passes * self.steps_per_pass + rest * self.steps_per_epoch


def epoch_lengths(
    steps_per_epoch: int | None, steps_per_pass: int | None, *, wraps_around: bool
) -> EpochLengths:
    """Return the lengths of epochs, and log a warning if they differ.

    Args:
        steps_per_epoch: as passed to `fit`; None for one pass over the data.
        steps_per_pass: batches of a pass; None if the data is infinite.
        wraps_around: epochs do not end at the end of the data.
    """
    if steps_per_epoch is None:
        assert steps_per_pass is not None
        return EpochLengths(steps_per_pass)
    if steps_per_pass is None or wraps_around:
        return EpochLengths(steps_per_epoch)
    lengths = EpochLengths(min(steps_per_epoch, steps_per_pass), steps_per_pass)
    if not lengths.are_equal or steps_per_epoch > steps_per_pass:
        logger.warning(
            "The data ends within an epoch: it has %s batches and `steps_per_epoch` is %s. The epoch ends there, as in "
            "plain Keras. Use `.repeat()`, or a number that divides.",
            steps_per_pass,
            steps_per_epoch,
        )
    return lengths


def plan_seed(trial_seed: int, phase: int) -> int:
    """Return the seed of the batch plan of one `fit` call, 0 to 2**31 - 1.

    Two phases of a script shuffle differently, even if they train on the same data.

    Args:
        trial_seed: the seed of the trial.
        phase: number of the `fit` call, from 0.
    """
    stream = np.random.RandomState([trial_seed % 2**32, phase])
    return int(stream.randint(0, 2**31 - 1))


def sample_order(num_samples: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Return the order of all samples in a pass over the data, inside the graph.

    Args:
        num_samples: number of samples of the data.
        seed: the seed of the batch plan.
        epoch: int64 scalar, the number of the pass, from 0.

    Returns:
        int64, (num_samples,): sample indices.
    """
    indices = tf.range(num_samples, dtype=tf.int64)
    return tf.random.experimental.stateless_shuffle(
        indices, seed=tf.stack([tf.constant(seed, tf.int64), epoch])
    )


def batch_order(num_batches: int, seed: int, epoch: int) -> list[int]:
    """Return the order of the batches of a dataset in a pass over it.

    NumPy guarantees that the streams of `RandomState` do not change, so that the order is the same in every release.

    Args:
        num_batches: number of batches of the dataset.
        seed: the seed of the batch plan.
        epoch: the number of the pass, from 0.
    """
    order: list[int] = np.random.RandomState([seed, epoch % 2**32]).permutation(num_batches).tolist()
    return order
