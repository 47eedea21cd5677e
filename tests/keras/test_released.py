"""What a `fit` used is released when it returns, as with plain Keras, and not at a later garbage collection."""

from __future__ import annotations

import contextlib
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from kinds import Batches, InterruptAt, Interrupted, arrays, network
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

import det_keras as det


@pytest.fixture
def uncollected():
    """Let no garbage collection run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def dataset():
    return tf.data.Dataset.from_tensor_slices(arrays()).shuffle(30).batch(8).prefetch(tf.data.AUTOTUNE)


DATA = {
    "arrays": lambda: dict(zip("xy", arrays(), strict=True)),
    "tf_data": lambda: {"x": dataset()},
    "pydataset": lambda: {"x": Batches(workers=2)},
    "generator": lambda: {
        "x": (tuple(part[:8] for part in arrays()) for _ in range(12)),
        "steps_per_epoch": 4,
    },
}


def fit(trainer, data, callbacks=()):
    keras.backend.clear_session(free_memory=False)
    model = network(optimizer=keras.optimizers.SGD(0.1))
    trainer(model, **data, validation_data=dataset(), epochs=3, verbose=0, callbacks=list(callbacks))


def managed(run_dir):
    def trainer(model, **options):
        with det.keras.init(run_dir=run_dir, config={"min_checkpoint_period": {"batches": 5}}) as context:
            context.fit(model, **options)

    return trainer


def plain(model, **options):
    model.fit(**options)


def left_over(trainer, kind, batches=10**6):
    """Return how many iterators are left of a fit, which is interrupted after so many batches."""
    before = {id(found) for found in gc.get_objects() if isinstance(found, OwnedIterator)}
    with contextlib.suppress(Interrupted):
        fit(trainer, DATA[kind](), [InterruptAt(batches)])
    return sum(isinstance(found, OwnedIterator) and id(found) not in before for found in gc.get_objects())


@pytest.mark.parametrize("kind", DATA)
def test_no_iterator_outlives_its_fit(kind, uncollected, tmp_path):
    assert left_over(plain, kind) == left_over(managed(tmp_path), kind) == 0


@pytest.mark.parametrize("kind", ["arrays", "tf_data", "pydataset"])
def test_an_interrupted_fit_leaves_no_more_than_keras_does(kind, uncollected, tmp_path):
    expected = left_over(plain, kind, 7)
    assert left_over(managed(tmp_path), kind, 7) <= expected
    assert left_over(managed(tmp_path), kind) == 0


@pytest.mark.parametrize("trainer", [plain, managed], ids=["plain", "managed"])
def test_arrays_are_freed_once_the_script_drops_them(trainer, uncollected, tmp_path):
    x, y = (np.array(part) for part in arrays())
    kept = weakref.ref(x)
    fit(trainer(tmp_path) if trainer is managed else trainer, {"x": x, "y": y})
    del x, y
    assert kept() is None
