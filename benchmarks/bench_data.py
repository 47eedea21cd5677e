"""The array plan against Keras's own array adapter, shuffle on, with a model that does next to nothing."""

from __future__ import annotations

from measure import in_turns, report

# isort: split
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from det_keras.keras.data.arrays import ArraySource

SAMPLES, FEATURES, BATCH, TURNS = 60_000, 784, 128, 25

x = np.random.RandomState(0).rand(SAMPLES, FEATURES).astype("float32")
y = np.random.RandomState(0).randint(0, 10, SAMPLES)
source = ArraySource((x, y), batch_size=BATCH, shuffle=True, seed=1)
adapter = ArrayDataAdapter(x, y, batch_size=BATCH, shuffle=True).get_tf_dataset()
epoch = iter(range(10**6))


@tf.function
def step(batch: tf.Tensor) -> tf.Tensor:
    """Touch the batch, as a step would."""
    return tf.reduce_sum(batch[:, :8])


def ours() -> None:
    """Read an epoch of the plan."""
    source.begin_epoch(next(epoch), 0, None)
    for batch, _ in source.dataset(None):
        step(batch)


def theirs() -> None:
    """Read an epoch of Keras's adapter."""
    for batch, _ in adapter:
        step(batch)


ours()
theirs()
of_keras, of_ours = in_turns(TURNS, theirs, ours)
report(
    "array plan, against Keras's array adapter",
    of_ours / of_keras,
    goal=0.95,
    detail=f"{of_keras:.3f} s an epoch",
)
