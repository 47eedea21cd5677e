"""Which samples, when: orders as pure functions of (seed, epoch)."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

__all__ = ["EpochLengths", "batch_order", "epoch_lengths", "plan_seed", "sample_order"]


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpochLengths:
    """How many batches each epoch has, and where it begins in the row of all batches.

    Keras ends an epoch where the data ends, so that epochs differ in length where ``steps_per_epoch`` does not divide a
    pass: 11 batches by 4 are epochs of 4, 4 and 3.

    Attributes:
        steps_per_epoch: as given to `fit`.
        steps_per_pass: batches of a pass over the data; None where epochs do not end with it.
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
        """Return how many batches come before an epoch."""
        if self.steps_per_pass is None:
            return epoch * self.steps_per_epoch
        passes, rest = divmod(epoch, math.ceil(self.steps_per_pass / self.steps_per_epoch))
        return passes * self.steps_per_pass + rest * self.steps_per_epoch


def epoch_lengths(steps_per_epoch: int | None, steps_per_pass: int | None, *, reads_on: bool) -> EpochLengths:
    """Return the lengths of epochs, and warn where they differ.

    Args:
        steps_per_epoch: as given to `fit`; None for one pass over the data.
        steps_per_pass: batches of a pass; None if the data never ends.
        reads_on: epochs do not end with the data.
    """
    if steps_per_epoch is None:
        assert steps_per_pass is not None
        return EpochLengths(steps_per_pass)
    if steps_per_pass is None or reads_on:
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

    Two phases of a script shuffle differently, whatever they train on.
    """
    stream = np.random.RandomState([trial_seed % 2**32, phase])
    return int(stream.randint(0, 2**31 - 1))


def sample_order(num_samples: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Return the order of all samples in a pass over the data, inside the graph.

    Args:
        num_samples: size of the data.
        seed: of the plan.
        epoch: int64 scalar, the number of the pass.

    Returns:
        int64, (num_samples,): sample indices.
    """
    indices = tf.range(num_samples, dtype=tf.int64)
    return tf.random.experimental.stateless_shuffle(
        indices, seed=tf.stack([tf.constant(seed, tf.int64), epoch])
    )


def batch_order(num_batches: int, seed: int, epoch: int) -> list[int]:
    """Return the order of the batches of a dataset in a pass over it.

    NumPy keeps the streams of `RandomState` frozen, so that the order is the same in every release.
    """
    order: list[int] = np.random.RandomState([seed, epoch % 2**32]).permutation(num_batches).tolist()
    return order
