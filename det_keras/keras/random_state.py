"""The random states outside of the model: Python's, NumPy's, TensorFlow's, Keras's.

Stateful ``tf.random.*`` ops inside a train step keep their state where nobody can read it; use
``keras.random`` with a ``SeedGenerator``, or a ``tf.random.Generator`` on a layer, whose states are saved.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Keras and TensorFlow offer no public way to read the states behind `set_random_seed`.
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import global_seed_generator
from tensorflow.python.eager import context as tf_context

__all__ = ["capture_random_state", "restore_random_state"]


def capture_random_state(model: Any) -> dict[str, Any]:
    """Return all random states as JSON values."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    eager = _eager_stream()
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "keras": _read(seeds.state) if (seeds := _keras_seeds()) is not None else None,
        "tensorflow": _eager_state(eager) if eager is not None else None,
        "generators": [_read(generator.state) for generator in _generators(model)],
    }


def restore_random_state(model: Any, state: Mapping[str, Any]) -> None:
    """Put back what `capture_random_state` returned."""
    if state["keras"] is not None:
        # First, because a process that has not drawn from it yet makes it here, which draws from Python's stream.
        global_seed_generator().state.assign(state["keras"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    eager = _eager_stream()
    if eager is not None and state["tensorflow"] is not None:
        version, internal, gauss = state["tensorflow"]
        eager.setstate((version, tuple(internal), gauss))
    for generator, value in zip(_generators(model), state["generators"], strict=False):
        generator.state.assign(value)


def _read(variable: Any) -> list[int]:
    values: list[int] = np.asarray(variable).tolist()
    return values


def _keras_seeds() -> Any:
    """Return Keras's global seed generator if there is one; making it would draw from Python's stream."""
    return global_state.get_global_attribute("global_seed_generator")


def _eager_stream() -> Any:
    """Return the Python generator from which eager TensorFlow draws the seeds of its ops, if there is one."""
    return getattr(tf_context.context(), "_rng", None)


def _eager_state(stream: random.Random) -> list[Any]:
    version, internal, gauss = stream.getstate()
    return [version, list(internal), gauss]


def _generators(model: Any) -> Iterator[tf.random.Generator]:
    """Yield the global `tf.random.Generator` and those that layers hold, in a fixed order."""
    yield tf.random.get_global_generator()
    for layer in model._flatten_layers():
        for _, value in sorted(vars(layer).items()):
            if isinstance(value, tf.random.Generator):
                yield value
