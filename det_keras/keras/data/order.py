"""Which samples, when: orders as pure functions of (seed, epoch)."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

__all__ = ["batch_order", "plan_seed", "sample_order"]


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
