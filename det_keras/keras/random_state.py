"""The random states outside of the model: Python's, NumPy's, TensorFlow's, Keras's, PyTorch's where it is used.

Stateful ``tf.random.*`` ops inside a train step keep their state where nobody can read it; use
``keras.random`` with a ``SeedGenerator``, or a ``tf.random.Generator`` on a layer, whose states are saved.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Keras and TensorFlow offer no public way to read the states behind `set_random_seed`.
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import global_seed_generator
from tensorflow.python.eager import context as tf_context

__all__ = [
    "capture_random_state",
    "capture_streams",
    "restore_random_state",
    "restore_streams",
]


def capture_streams() -> dict[str, Any]:
    """Return the states of the streams that belong to no model, as JSON values by name."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    eager = _eager_stream()
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "keras": _read(seeds.state) if (seeds := _keras_seeds()) is not None else None,
        "tensorflow": _eager_state(eager) if eager is not None else None,
        "generator": _read(tf.random.get_global_generator().state),
        "torch": _torch_state(),
    }


def restore_streams(state: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
    """Restore what `capture_streams` returned.

    Args:
        state: by name.
        without: names of streams that are left as they are.
    """
    state = {name: None if name in without else value for name, value in state.items()}
    if state["keras"] is not None:
        # First, because a process that has not drawn from it yet makes it here, which draws from Python's stream.
        global_seed_generator().state.assign(state["keras"])
    if state["python"] is not None:
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
    if state["numpy"] is not None:
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    eager = _eager_stream()
    if eager is not None and state["tensorflow"] is not None:
        version, internal, gauss = state["tensorflow"]
        eager.setstate((version, tuple(internal), gauss))
    if state["generator"] is not None:
        tf.random.get_global_generator().state.assign(state["generator"])
    # Older checkpoints do not have it.
    if state.get("torch") is not None and (torch := _torch()) is not None:
        content = np.frombuffer(base64.b64decode(state["torch"]), np.uint8)
        torch.set_rng_state(torch.from_numpy(content.copy()))


def capture_random_state(model: Any) -> dict[str, Any]:
    """Return all random states as JSON values: the streams, and the generators that layers of `model` hold."""
    streams = capture_streams()
    generators = [streams.pop("generator"), *(_read(one.state) for one in _layer_generators(model))]
    return {**streams, "generators": generators}


def restore_random_state(model: Any, state: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
    """Restore what `capture_random_state` returned; arguments as in `restore_streams`."""
    first, *others = state["generators"]
    restore_streams({**state, "generator": first}, without=without)
    for generator, value in zip(_layer_generators(model), others, strict=False):
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


def _torch() -> Any:
    """Return PyTorch if the script has imported it: its DataLoaders draw their order from PyTorch's own stream."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_rng_state") else None


def _torch_state() -> str | None:
    torch = _torch()
    if torch is None:
        return None
    # Five thousand bytes: as a list of numbers it would be most of a checkpoint's JSON.
    return base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()


def _layer_generators(model: Any) -> Iterator[tf.random.Generator]:
    """Yield the `tf.random.Generator`s that layers hold, in a fixed order."""
    for layer in model._flatten_layers():
        for _, value in sorted(vars(layer).items()):
            if isinstance(value, tf.random.Generator):
                yield value
